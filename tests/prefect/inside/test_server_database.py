"""A database is used only once it is proved to be the server's: what the API says is played, the databases are real."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.actions import VariableCreate
from prefect.exceptions import ObjectAlreadyExists
from sqlalchemy import text

from dispatch_core.errors import StoreUnavailable
from dispatch_core.stores import migrations
from dispatch_core.stores.engine import WRITES, make_engine
from dispatch_core.stores.migrations import current, downgrade, newest, upgrade
from dispatch_core.stores.schema import REVISION_TABLE
from prefect_collection import server_database
from prefect_collection.blocks import DispatchStore
from prefect_collection.connections import connected
from prefect_collection.server_database import prove, server_schema, set_up
from tests.postgres import PostgresServer

FLOW_RUN = uuid4()


class Server:
    """A Prefect server: what its API publishes, and whether that reaches the database that it is asked about."""

    def __init__(self, url: str) -> None:
        self.url, self.published = url, ""
        self.writes_there = True
        self.turn = asyncio.Lock()

    async def __aenter__(self) -> "Server":
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def read_variable_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(value=self.published) if self.published else None

    async def create_variable(self, variable: VariableCreate) -> SimpleNamespace:
        async with self.turn:
            if self.published:
                raise ObjectAlreadyExists(RuntimeError())
            value = str(variable.value)
            if self.writes_there:
                row = f"INSERT INTO variable (name, value) VALUES ('{variable.name}', '\"{value}\"')"
                await execute(self.url, row)
            self.published = value
        return SimpleNamespace(value=value)


async def execute(url: str, *statements: str, making: bool = False) -> None:
    engine = make_engine(url, upgrading=making)
    async with engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        for statement in statements:
            await connection.execute(text(statement))
        await connection.commit()
    await engine.dispose()


async def prefects_tables(url: str, id: str, value: str) -> None:
    """The two tables of Prefect's that are looked at, with their types there."""
    await execute(
        url,
        f"CREATE TABLE variable (name VARCHAR, value {value})",
        f"CREATE TABLE flow_run (id {id})",
        f"INSERT INTO flow_run (id) VALUES ('{FLOW_RUN}')",
        making=True,
    )


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server on SQLite, and this program's settings name its database."""
    served = Server(f"sqlite+aiosqlite:///{tmp_path / 'prefect.db'}")
    await prefects_tables(served.url, "CHAR(36)", "JSON")
    play(monkeypatch, served)
    return served


def play(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(server_database, "get_client", lambda: server)
    monkeypatch.setattr(server_database, "server_url", lambda: server.url)
    monkeypatch.setattr("prefect_collection.connections.server_url", lambda: server.url)


@pytest.mark.promise("F1")
async def test_the_servers_database_is_set_up_and_used(server: Server, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no store of dispatch"):
        await prove(server.url, None, ())
    shown, revision = await set_up()
    assert (shown, revision) == (f"sqlite:///{tmp_path / 'prefect.db'}", newest())
    assert await set_up() == (shown, revision)
    await prove(server.url, None, (FLOW_RUN,))
    block = DispatchStore.of_server(spool=tmp_path / "spool")
    async with connected(block, "local", (FLOW_RUN,)) as connection:
        assert await connection.store.jobs() == []


@pytest.mark.promise("F1")
@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM variable", "does not hold the id"),
        ("UPDATE variable SET value = '\"another\"'", "does not hold the id"),
        ("DELETE FROM flow_run", f"does not hold the flow run {FLOW_RUN}"),
        ("DROP TABLE variable", "no such table"),
    ],
    ids=["no id", "another id", "an old copy", "not Prefect's"],
)
async def test_another_database_is_refused(server: Server, statement: str, why: str) -> None:
    await set_up()
    await execute(server.url, statement)
    with pytest.raises(StoreUnavailable, match=rf"not the Prefect server's own: .*{why}.*PREFECT_SERVER_DATABASE"):
        await prove(server.url, None, (FLOW_RUN,))


@pytest.mark.promise("F1")
async def test_nothing_is_made_in_another_database(server: Server, tmp_path: Path) -> None:
    server.writes_there = False
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        await set_up()
    assert await current(server.url) is None
    missing = f"sqlite+aiosqlite:///{tmp_path / 'missing.db'}"
    with pytest.raises(StoreUnavailable, match="unable to open"):
        await prove(missing, None, ())
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.promise("F1")
@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, r"has no tables of dispatch; run `python -m prefect_collection\.setup`"),
        (
            "0001",
            r"of revision 0001, and this version of dispatch needs 0002; run `python -m prefect_collection\.setup`",
        ),
        ("9999", r"of revision 9999, which a newer dispatch has made"),
    ],
    ids=["none", "older", "newer"],
)
async def test_tables_of_another_revision_are_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: str | None, why: str
) -> None:
    await set_up()
    if found is None:
        await downgrade(server.url, "base")
    elif found == newest():
        monkeypatch.setattr(migrations, "newest", lambda: "0002")
    else:
        await execute(server.url, f"UPDATE {REVISION_TABLE} SET version_num = '{found}'")
    before = (tmp_path / "prefect.db").read_bytes()
    with pytest.raises(StoreUnavailable, match=why) as refused:
        async with connected(DispatchStore.of_server(spool=tmp_path / "spool"), "local", (FLOW_RUN,)):
            pass
    assert "\n" not in str(refused.value)
    assert (tmp_path / "prefect.db").read_bytes() == before


@pytest.mark.promise("F1")
async def test_two_that_set_up_at_once_publish_one_id(server: Server) -> None:
    assert len(set(await asyncio.gather(set_up(), set_up()))) == 1


@pytest.mark.promise("F1")
async def test_on_postgresql_the_tables_have_a_schema_of_their_own(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.url("postgres").replace("postgresql:", "postgresql+asyncpg:")
    await prefects_tables(url, "UUID", "JSON")
    played = Server(url)
    play(monkeypatch, played)
    with pytest.raises(StoreUnavailable, match=r"named like the server's database user.*nothing was made"):
        await set_up()
    assert await current(url, schema="dispatch") is None
    await execute(url, "CREATE ROLE prefect SUPERUSER LOGIN", making=True)
    played.url = url = url.replace("//dispatch@", "//prefect@")
    await set_up()
    assert server_schema(url, None) == "dispatch"
    engine = make_engine(url)
    async with engine.connect() as connection:
        where = await connection.execute(text("SELECT schemaname FROM pg_tables WHERE tablename LIKE 'dispatch%'"))
        assert set(where.scalars()) == {"dispatch"}
    await engine.dispose()
    await prove(url, "dispatch", (FLOW_RUN,))
    for flow_run in (uuid4(), UUID(int=0)):
        with pytest.raises(StoreUnavailable, match="does not hold the flow run"):
            await prove(url, "dispatch", (flow_run,))
    assert await upgrade(url, schema="dispatch") == newest()
