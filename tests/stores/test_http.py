"""What HTTP adds to a store: other programs that answer, replies that are lost, and two releases on one line."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from dispatch_core import errors
from dispatch_core.errors import BadInput, CommitUnknown, DispatchError, StoreUnavailable, UnreadableRecord
from dispatch_core.stores import messages
from dispatch_core.stores.http import HttpStore
from dispatch_core.stores.line import Token
from tests.stores.proxy import Moment
from tests.stores.records import commit_id, committed, created, fresh, held
from tests.stores.served import OnHttp


class Answers:
    """A program on a port that answers each request with the next of some texts, and then with the last of them."""

    def __init__(self, *texts: bytes | None) -> None:
        self._texts = list(texts)
        self.asked = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """None: nothing is said, and the line stays open."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
            if text is None:
                await reader.read()
            else:
                writer.write(text)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def said(status: int, body: str = "", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@asynccontextmanager
async def answering(*texts: bytes | None) -> Any:
    answers = Answers(*texts)
    listener = await asyncio.start_server(answers.answer, "127.0.0.1", 0)
    store = HttpStore(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", Token("marker"))
    try:
        yield store, answers
    finally:
        await store.close()
        listener.close()
        await listener.wait_closed()


PAGE = said(200, "<html>Airflow</html>", "content-type: text/html")
AWAY = said(502, "<html>Bad Gateway</html>")
OURS = f"{messages.MARK}: {messages.PROTOCOL}"


@pytest.mark.parametrize("text", [PAGE, said(404), said(401), said(302, "", "location: http://127.0.0.1:1/")])
async def test_what_another_program_says_is_no_answer(text: bytes) -> None:
    """Airflow itself answers 200 and a page where the plugin is not installed."""
    async with answering(text) as (store, answers):
        for use in (store.jobs(), store.read("job"), created(store)):
            with pytest.raises(StoreUnavailable, match="is not dispatch") as caught:
                await use
            assert "marker" not in str(caught.value)
        assert answers.asked == 3


@pytest.mark.promise("C5")
@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_proxy_that_does_not_know_leaves_a_commit_in_doubt(status: int) -> None:
    async with answering(said(status)) as (store, answers):
        with pytest.raises(CommitUnknown, match="may have landed"):
            await committed(store, fresh())
        assert answers.asked == 4
        with pytest.raises(StoreUnavailable):
            await store.jobs()


@pytest.mark.promise("C5")
async def test_a_refusal_after_a_reply_was_lost_does_not_say_that_it_did_not_land() -> None:
    """The second try is refused for want of the database or the right; the first may have landed all the same."""
    for kind, status in (("StoreUnavailable", 503), (messages.DENIED, 403)):
        refused = said(status, json.dumps({"error": kind, "text": "not now"}), OURS)
        async with answering(AWAY, refused) as (store, _):
            with pytest.raises(CommitUnknown):
                await committed(store, fresh())
        async with answering(refused) as (store, answers):
            with pytest.raises(StoreUnavailable, match="not now"):
                await committed(store, fresh())
            assert answers.asked == 1


@pytest.mark.promise("C5")
async def test_a_server_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch_core.stores.line.TRY_SECONDS", 0.2)
    async with answering(None) as (store, answers):
        with pytest.raises(CommitUnknown):
            async with asyncio.timeout(20):
                await committed(store, fresh())
        assert answers.asked == 4


def kinds(of: type[DispatchError] = DispatchError) -> list[type[DispatchError]]:
    """Every error of dispatch that a store may raise."""
    return [of, *(each for kind in of.__subclasses__() if kind.__module__ == errors.__name__ for each in kinds(kind))]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_arrives_as_what_it_was(kind: type[DispatchError]) -> None:
    status, refusal = messages.told(kind("what happened"))
    assert status >= 400
    back = messages.raised(msgspec.json.decode(msgspec.json.encode(refusal), type=messages.Refusal))
    assert (type(back), str(back)) == (kind, "what happened")


@pytest.mark.promise("C5")
async def test_connection_reset_at_each_packet(http: OnHttp) -> None:
    """Whatever was on the way, either way, a create and a commit land once, and a read reads."""
    other = await http.open()
    store = await http.open_breakable()
    step = 0
    while http.proxy.broken == step:
        http.proxy.packets_left = step
        record = await created(store, fresh(f"job {step}"))
        written = await committed(store, held(record, "ada"))
        assert await store.read(record.key) == written == await other.read(record.key)
        changes = await other.history(record.key)
        assert [change.commit for change in changes] == [record.commit, written.commit]
        await store.close()
        step += 1
    assert step > 5


async def test_a_request_that_is_abandoned_lands_once_or_not_at_all(http: OnHttp) -> None:
    """Nobody waits for it any more, and it may land while others read: a later writer meets it as a conflict."""
    store, other = await http.open(), await http.open()
    record = await created(store)
    for number in range(10):
        call = asyncio.create_task(committed(store, held(record, "ada"), commit=f"c{number}"))
        await asyncio.sleep(0.001 * number)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        while True:
            record = await other.read(record.key)
            try:
                record = await committed(other, held(record, "bob"))
                break
            except errors.Conflict:
                continue
    changes = await other.history(record.key)
    assert [change.revision for change in changes] == list(range(1, record.revision + 1))
    assert len({change.commit for change in changes}) == len(changes)
    assert len(record.holds) == record.revision - 1


async def test_a_record_of_a_later_release_is_told_and_hides_no_other(http: OnHttp) -> None:
    """The server reads it and this client does not."""
    store = await http.open()
    record, other = await created(store, fresh("later")), await created(store, fresh("other"))
    rows = [messages.Found.of(row) for row in await store.jobs()]
    later = msgspec.Raw(bytes(rows[1].record).replace(b'"format":1', b'"format":99'))
    assert rows[1].key == "later"
    listed = [row.listed() for row in (rows[0], msgspec.structs.replace(rows[1], record=later))]
    assert (listed[0].record, listed[1].record) == (other, None)
    assert "later" in listed[1].problem
    with pytest.raises(UnreadableRecord, match="'later'"):
        messages.read(bytes(later), "later")
    assert record.key == "later"


async def test_what_is_too_long_is_not_sent(http: OnHttp) -> None:
    store = await http.open()
    with pytest.raises(BadInput, match="nothing was sent"):
        await created(store, fresh(command="x" * messages.LARGEST_BYTES))
    assert await store.jobs() == []


async def test_a_lost_reply_is_asked_for_again_by_its_id(http: OnHttp) -> None:
    """Once the reply is lost, the server has the commit already, and makes no second one of it."""
    store, other = await http.open_breakable(), await http.open()
    record = await created(store)
    use: list[Callable[[], Awaitable[object]]] = [
        lambda: committed(store, held(record, "ada"), commit="once"),
        lambda: store.create(fresh("next"), commit=commit_id(), actor="x"),
    ]
    for each in use:
        http.break_commit(Moment.AFTER)
        await each()
    assert http.broken == 2
    assert [change.commit for change in await other.history(record.key)] == [record.commit, "once"]
    assert len(await other.history("next")) == 1
