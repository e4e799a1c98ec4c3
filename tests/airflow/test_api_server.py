"""The plugin in a real API server of Airflow, with users of every role: what it refuses, and what it lets in.

One server and a migrated database, and no other program of Airflow: nobody runs DAGs here.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from airflow_provider import identity
from airflow_provider.login import Login
from dispatch_core.demo.throwaway import HEALTHY_SECONDS, MIGRATE_SECONDS, ThrowawayAirflow
from dispatch_core.environments import Environment
from dispatch_core.errors import CommitUnknown, Conflict, NotFound, Owned, StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.stores.http import HttpStore
from tests.refusals import Refused, assert_refused, refusals, send
from tests.stores.records import committed, created, fresh, held, settled

ROLES = {"vic": "viewer", "uma": "user", "opal": "op", "ada": "admin"}
KEY = "airflow/etl/manual/train/-1/0"


class ApiServer(ThrowawayAirflow):
    """An Airflow of which only the API server runs."""

    def start(self) -> None:
        for name in ("dags", "home", "tmp"):
            (self.folder / name).mkdir()
        self.passwords = {name: secrets.token_urlsafe(12) for name in ROLES}
        file = self.folder / "passwords.json"
        file.touch(0o600)
        file.write_text(json.dumps(self.passwords))
        users = ",".join(f"{name}:{role}" for name, role in ROLES.items())
        self.settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] = users
        self.shelter.run("migrate", self._command("db", "migrate"), self.settings, MIGRATE_SECONDS)
        self.launch("api-server")
        self.wait("the API server answers", self.page.health, HEALTHY_SECONDS)
        self.tokens = {name: self.token(name) for name in ROLES}

    def token(self, name: str) -> str:
        told = {"username": name, "password": self.passwords[name]}
        answer = httpx.post(f"{self.page.url}/auth/token", json=told, timeout=60.0)
        return str(answer.raise_for_status().json()["access_token"])

    @property
    def address(self) -> str:
        return f"{self.page.url}/dispatch"

    def ask(self, name: str, work: Callable[[HttpStore], Awaitable[Any]]) -> Any:
        """Let a user work on the store, as a worker would that logs in."""

        async def asked() -> Any:
            store = HttpStore(self.address, Login(self.page.url, name, self.passwords[name]))
            try:
                return await work(store)
            finally:
                await store.close()

        # In a thread: a browser that is open has an event loop in this one.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(asked())).result()

    def written(self) -> list[Any]:
        return [self.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("dispatch_job", "dispatch_history")]

    def logged(self) -> str:
        return self.shelter.log("api-server").read_text(errors="replace")


@pytest.fixture(scope="module")
def server(engine: Environment) -> Iterator[ApiServer]:
    with ApiServer(engine, (), prefix="dispatch-api-") as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def record(server: ApiServer) -> Record:
    """One of a task of the DAG etl, at its second revision."""

    async def work(store: HttpStore) -> Record:
        return await committed(store, held(await created(store, fresh(KEY)), "ada"))

    made: Record = server.ask("opal", work)
    return made


def test_it_refuses_and_nothing_is_written(server: ApiServer, record: Record) -> None:
    before = server.written()
    known = {name: f"Bearer {token}" for name, token in server.tokens.items()}
    cases = list(refusals(record, reader="vic", actor="uma", writer="opal"))
    cases.append(Refused("a token of nobody", "nobody", "POST", "/jobs", 401, "Denied", {}))
    with httpx.Client(base_url=server.address, timeout=60.0) as client:
        for refused in cases:
            assert_refused(send(client, refused, {**known, "nobody": "Bearer e30.e30.e30"}), refused)
            assert server.written() == before, refused.what
        right = send(client, cases[0]._replace(who="opal"), known)
        assert right.status_code == 204, "what was refused would have been written with the right"
    assert server.written() != before


def test_a_viewer_reads(server: ApiServer, record: Record) -> None:
    async def work(store: HttpStore) -> None:
        assert (await store.read(KEY)).uid == record.uid
        assert [row.key for row in await store.jobs(uids=frozenset({record.uid}))] == [KEY]
        assert (await store.history(KEY))[0].actor == "person ada"
        with pytest.raises(StoreUnavailable, match="vic has no right to store"):
            await created(store, fresh("vic's"))
        with pytest.raises(NotFound):
            await store.read("vic's")

    server.ask("vic", work)


def test_who_logs_in_with_another_password_is_told(server: ApiServer) -> None:
    async def work() -> None:
        store = HttpStore(server.address, Login(server.page.url, "opal", "marker-of-a-password"))
        with pytest.raises(StoreUnavailable, match="no token, and answers 401") as caught:
            await store.jobs()
        with pytest.raises(StoreUnavailable):  # nothing was sent, so nothing is in doubt
            await created(store, fresh("in doubt?"))
        await store.close()
        assert "marker" not in str(caught.value) + repr(store) + repr(store._line)

    assert not issubclass(CommitUnknown, StoreUnavailable)
    asyncio.run(work())
    assert "marker-of-a-password" not in server.logged()


def test_a_token_that_ended_is_renewed(server: ApiServer, record: Record) -> None:
    async def work() -> None:
        login = Login(server.page.url, "opal", server.passwords["opal"])
        login._token, login._until = "e30.e30.e30", float("inf")
        store = HttpStore(server.address, login)
        assert (await store.read(KEY)).uid == record.uid
        assert login._token != "e30.e30.e30"
        await store.close()

    asyncio.run(work())


def test_a_job_lives_its_life(server: ApiServer) -> None:
    """On Airflow's own database, past every route of the store."""

    async def work(store: HttpStore) -> None:
        record = await created(store, fresh("life"))
        lease = await store.acquire(record, "one", 60)
        with pytest.raises(Owned, match="one"):
            await store.acquire(record, "two", 60)
        await store.renew(lease, 60)
        later = await committed(store, held(record, "ada"), lease=lease)
        with pytest.raises(Conflict):
            await committed(store, held(record, "stale"))
        assert await store.revision("life", record.uid) == 2
        assert [row.owner for row in await store.jobs(key_prefix="life")] == ["one"]
        last = await committed(store, settled(later), lease=lease)
        await store.release(lease)
        assert await store.read("life") == last
        assert len(await store.history("life")) == 3
        before = (await store.jobs(key_prefix="life"))[0].updated
        assert (await store.prune(before, trial=True)).deleted == 0

    server.ask("opal", work)


def test_the_page_is_for_who_has_logged_in(server: ApiServer, record: Record) -> None:
    with httpx.Client(base_url=server.address, timeout=60.0) as client:
        away = client.get("/")
        assert away.status_code == 303
        assert "/auth/login" in away.headers["location"]
        shown = client.get("/", headers={"cookie": f"_token={server.tokens['vic']}"})
        assert shown.status_code == 200
        assert KEY in shown.text


def test_airflow_lists_the_plugin(server: ApiServer) -> None:
    headers = {"authorization": f"Bearer {server.tokens['ada']}"}
    plugins = httpx.get(f"{server.page.url}/api/v2/plugins", headers=headers, timeout=60.0).json()["plugins"]
    (ours,) = (plugin for plugin in plugins if plugin["name"] == "dispatch")
    assert [app["url_prefix"] for app in ours["fastapi_apps"]] == ["/dispatch"]
    of = "/dispatch/of?dag_id={DAG_ID}&run_id={RUN_ID}&task_id={TASK_ID}&map_index={MAP_INDEX}"
    assert [(view["destination"], view["href"]) for view in ours["external_views"]] == [
        ("nav", "/dispatch/"),
        ("task_instance", of),
    ]


def test_no_credential_is_in_the_log(server: ApiServer, record: Record) -> None:
    told = server.logged()
    assert "/dispatch/api/record" in told
    for secret in (*server.tokens.values(), *server.passwords.values()):
        assert secret not in told


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield launched
        launched.close()


def logged_in(server: ApiServer, browser: Browser, name: str, address: str) -> Page:
    """A page of a user who goes to an address and is asked to log in on the way."""
    page = browser.new_context().new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_url("**/auth/login**")
    page.locator("input[name=username]").fill(name)
    page.locator("input[name=password]").fill(server.passwords[name])
    page.locator("button[type=submit]").click()
    page.wait_for_url("**/dispatch/**")
    return page


def test_a_person_holds_a_job_in_a_browser(server: ApiServer, browser: Browser) -> None:
    """From a task instance to its job, past Airflow's own login; then into the record, and on the page."""
    dag, run, reason = "etl", "manual__2026-11-29T00:00:00+00:00", "the disk is <b>full</b>"
    key = identity.key(identity.stem(dag, run, "train", -1), 0)
    server.ask("opal", lambda store: created(store, fresh(key)))
    names = {"dag_id": dag, "run_id": run, "task_id": "train", "map_index": "{MAP_INDEX}"}
    address = f"{server.address}/of?{urlencode(names)}"
    page = logged_in(server, browser, "uma", address)
    expect(page.get_by_role("heading", name=key)).to_be_visible()
    expect(page.locator("#why")).to_contain_text("nobody supervises it")
    page.get_by_label("Hold, so that it does not start").fill(reason)
    page.get_by_role("button", name="Hold").click()
    expect(page.locator(".headline")).to_contain_text(f"It is held by person uma: {reason}.")
    (hold,) = server.ask("opal", lambda store: store.read(key)).holds
    assert (hold.asked_by, hold.reason, hold.lifted) == ("person uma", reason, False)

    viewer = logged_in(server, browser, "vic", address)
    expect(viewer.locator(".headline")).to_contain_text(reason)
    expect(viewer.locator("form[method=post]")).to_have_count(0)
    expect(viewer.get_by_role("link", name="Cancel…")).to_have_count(0)

    page.get_by_role("link", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".headline")).to_contain_text("It is cancelled by person uma")
    outcome = server.ask("opal", lambda store: store.read(key)).outcome
    assert (outcome.result, outcome.by) == ("cancelled", "person uma")


def test_the_pages_are_in_airflows_menu(server: ApiServer, browser: Browser) -> None:
    server.ask("opal", lambda store: created(store, fresh("in-the-menu")))
    page = logged_in(server, browser, "ada", f"{server.page.url}/dispatch/")
    page.goto(f"{server.page.url}/plugin/dispatch")
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="in-the-menu").click()
    expect(frame.locator(".headline")).to_contain_text("It is submitted", timeout=60_000)
