"""What the pages show and refuse, asked over HTTP of a real server."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import update
from starlette.applications import Starlette
from starlette.routing import Mount

from dispatch_core.errors import CommitUnknown, DispatchError, StoreUnavailable
from dispatch_core.plan import Plan
from dispatch_core.record import Record, Result
from dispatch_core.stores import rules
from dispatch_core.stores.schema import job as table
from dispatch_core.stores.sql import SqlStore, open_store
from dispatch_core.web import listing
from dispatch_core.web.pages import routes
from tests.stores.records import commit_id, created, fresh, held, settled
from tests.web.jobs import HOSTILE, Floor, has_outcome, is_running, waits
from tests.web.serving import ACTOR, PREFIX, SECRET, VIEWER, People

SAME_SITE = {"sec-fetch-site": "same-origin"}


def fields_of(page: str, ask: str) -> dict[str, str]:
    """The hidden fields of the form that asks so, as the page has them."""
    form = re.search(rf'<form method="post" action="[^"]*/job/{ask}\?.*?</form>', page, re.DOTALL)
    assert form is not None, f"no form to {ask}"
    return {name: unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[0])}


def text_of(answer: httpx.Response) -> str:
    """What a person reads."""
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.text)))


async def shown(client: httpx.AsyncClient, record: Record, **query: str) -> httpx.Response:
    answer = await client.get("/job", params={"key": record.key, "uid": record.uid, **query})
    assert answer.status_code == 200
    return answer


async def asked(
    client: httpx.AsyncClient, record: Record, ask: str, headers: dict[str, str] | None = None, **fields: str
) -> httpx.Response:
    """Send a form as the page has it, with these fields filled in."""
    page = (await shown(client, record)).text
    if ask == "cancel":
        page = (await client.get("/job/cancel", params={"key": record.key})).text
    return await sent(client, record, ask, fields_of(page, ask) | fields, headers)


async def sent(
    client: httpx.AsyncClient, record: Record, ask: str, form: dict[str, str], headers: dict[str, str] | None = None
) -> httpx.Response:
    return await client.post(
        f"/job/{ask}", params={"key": record.key}, data=form, headers=SAME_SITE if headers is None else headers
    )


async def followed(client: httpx.AsyncClient, answer: httpx.Response) -> httpx.Response:
    assert answer.status_code == 303
    return await client.get(str(answer.next_request.url) if answer.next_request else "")


# --- what is shown


async def test_what_users_wrote_is_text(floor: Floor, ada: httpx.AsyncClient) -> None:
    record = await floor.submitted(HOSTILE, "echo '</dd><script>'", environment={"B": "\"'><script>x</script>"})
    await floor.client.hold(HOSTILE, reason='<img src=x onerror="alert(1)">')
    pages = [await ada.get("/"), await shown(ada, record), await ada.get("/job/cancel", params={"key": HOSTILE})]
    for page in pages:
        assert page.status_code == 200
        assert "<script>" not in page.text
        assert "<img src=x" not in page.text
        assert "\u202e" not in page.text
        assert "49" not in page.text.split("</head>")[1].split("alert")[1][:60], "a key is no template"
        scripts = re.findall(r"<script[^>]*>", page.text)
        assert [re.search(r'src="(/some/prefix/static/[^"]*)"', script) is not None for script in scripts] == [True]
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
    assert 'held: <img src=x onerror="alert(1)"> (person ada)' in text_of(pages[0])
    link = unescape(re.findall(r'class="name"><a href="([^"]*)"', pages[0].text)[0])
    assert "alert('key')" in text_of(await ada.get(link.removeprefix("/some/prefix")))


async def test_no_secret_is_shown_but_where_it_is_read_from(
    floor: Floor, ada: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAIN_TOKEN", "hunter2-marker")
    record = await floor.submitted("train")
    page = await shown(ada, await floor.until(record.key, is_running))
    assert "TOKEN a secret, from variable TRAIN_TOKEN" in text_of(page)
    assert "hunter2-marker" not in page.text


async def test_a_job_that_runs_and_one_that_ended(floor: Floor, ada: httpx.AsyncClient) -> None:
    await floor.submitted("going")
    going = await floor.until("going", is_running, stays=True)
    page = text_of(await shown(ada, going))
    assert f"It runs as {going.objects[0].id}, submission 1" in page
    assert "supervisor vm-7 4242" in page
    assert "Why is it not running" not in page
    assert f"open of {going.objects[0].id}, run 1 is asked for" in page
    await floor.submitted("flaky", "exit 75")
    flaky = await floor.until("flaky", has_outcome)
    page = text_of(await shown(ada, flaky))
    assert "It has failed (exit, code 75) by" in page
    assert "budget used: 2 of 2" in page
    assert "Cancel" not in page


async def test_why_it_is_not_running_is_told_from_the_record(floor: Floor, ada: httpx.AsyncClient) -> None:
    record = await floor.submitted("waiting")
    await floor.client.hold("waiting", reason="the disk is full")
    page = text_of(await shown(ada, record))
    assert "It is held by person ada: the disk is full. Nobody supervises it" in page
    assert "no hold : hold 1 by person ada: the disk is full" in page
    assert "no supervisor : nobody supervises it" in page
    assert "no submission : no submission is authorized yet" in page


async def test_the_scheduler_is_asked_only_where_somebody_wants_it(floor: Floor, ada: httpx.AsyncClient) -> None:
    await floor.submitted("waiting")
    await floor.client.hold("waiting", reason="not yet")
    record = await floor.until("waiting", lambda record: bool(record.objects))
    assert "listing : the listing is complete" not in text_of(await shown(ada, record))
    page = text_of(await shown(ada, record, explain="now"))
    assert "yes listing : the listing is complete" in page
    assert "(held)" in page


async def test_a_record_of_the_future_is_listed_and_shown_with_its_problem(
    store: SqlStore, ada: httpx.AsyncClient
) -> None:
    other, record = await created(store, fresh("other")), await created(store, fresh("future"))
    async with store._engine.begin() as connection:
        await connection.execute(update(table).where(table.c.uid == record.uid).values(document='{"format": 2}'))
    for show in ("open", "person", "all"):
        page = text_of(await ada.get("/", params={"show": show}))
        assert "unreadable" in page
        assert "job 'future'" in page
    assert other.key in text_of(await ada.get("/"))
    page = await shown(ada, record)
    assert "cannot be read" in text_of(page)
    assert "the job was created" in text_of(page)
    assert "<form" not in page.text


async def test_what_is_not_there_is_said_in_a_line(ada: httpx.AsyncClient) -> None:
    for path, status in (("/job?key=nope", 404), ("/job", 400), ("/?show=x", 400), ("/?after=yesterday", 400)):
        answer = await ada.get(path)
        assert answer.status_code == status, path
        assert "Traceback" not in answer.text
    assert "there is no job 'nope'" in text_of(await ada.get("/job?key=nope"))


# --- the list


def many(file: Path, count: int) -> None:
    """So many jobs at once: every second is settled, every tenth of the others is held, a third is supervised."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    rows = []
    for i in range(count):
        record = fresh(f"many/{i:05}")
        record = settled(record) if i % 2 else held(record, "person ada") if i % 20 == 0 else record
        written, document = rules.prepare(record, 1, commit_id())
        row: dict[str, object] = {name: getattr(written, name) for name in ("uid", "key", "scheduler", "settled")}
        row |= {"number": 1, "revision": 1, "commit_id": written.commit, "document": document.decode()}
        row |= {"created": _text(began), "updated": _text(began + timedelta(seconds=i // 3))}
        owner, until = ("somebody", "2100-01-01 00:00:00.000000") if i % 3 == 0 else (None, None)
        rows.append(row | {"lease_owner": owner, "lease_until": until, "lease_epoch": 0})
    names = list(rows[0])
    with closing(sqlite3.connect(file)) as connection, connection:
        values = ", ".join(f":{name}" for name in names)
        connection.executemany(f"INSERT INTO dispatch_job ({', '.join(names)}) VALUES ({values})", rows)


def _text(at: datetime) -> str:
    """A time as SQLAlchemy writes it for SQLite."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")


async def walk(ada: httpx.AsyncClient, **query: str) -> list[list[str]]:
    """The keys of each page, from the first to the last."""
    pages, path = [], str(httpx.URL("/", params=query))
    while path:
        answer = await ada.get(path)
        assert answer.status_code == 200
        pages.append(re.findall(r'class="name"><a href="[^"]*">([^<]*)</a>', answer.text))
        following = re.search(r'rel="next" href="/some/prefix([^"]*)"', answer.text)
        path = unescape(following[1]) if following else ""
    return pages


async def test_every_page_is_bounded_and_together_they_show_every_job_once(
    tmp_path: Path, ada: httpx.AsyncClient
) -> None:
    many(tmp_path / "jobs.db", 1207)
    for query, count in (
        ({"show": "open"}, 604),
        ({"show": "settled"}, 603),
        ({"show": "all"}, 1207),
        ({"show": "unattended"}, 402),
        ({"show": "person"}, 61),
        ({"show": "open", "key": "many/001"}, 50),
    ):
        pages = await walk(ada, **query)
        keys = [key for page in pages for key in page]
        assert len(keys) == len(set(keys)) == count, query
        assert max(map(len, pages)) <= listing.SHOWN
        order = [int(key.removeprefix("many/")) // 3 for key in keys]
        assert order == sorted(order, reverse=True), query


async def test_a_page_of_ten_thousand_reads_few_of_them(
    tmp_path: Path, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many(tmp_path / "jobs.db", 10_000)
    read = 0
    real = rules.read_document

    def counted(*arguments: object) -> Record:
        nonlocal read
        read += 1
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rules, "read_document", counted)
    for which in (listing.Which.OPEN, listing.Which.UNATTENDED, listing.Which.SETTLED, listing.Which.ALL):
        found = await listing.look(store, listing.Asked(which=which), everything)
        assert len(found.rows) == listing.SHOWN
        assert read <= listing.SHOWN + 1
        read = 0
    await listing.look(store, listing.Asked(which=listing.Which.PERSON, key="many/0"), everything)
    assert 0 < read <= listing.LOOKED_AT


async def everything(keys: frozenset[str]) -> frozenset[str]:
    return keys


async def test_who_may_see_few_of_many_is_shown_all_of_them_and_no_other(tmp_path: Path, store: SqlStore) -> None:
    many(tmp_path / "jobs.db", 2_000)
    mine = {f"many/{number:05}" for number in range(0, 2_000, 17)}

    async def readable(keys: frozenset[str]) -> frozenset[str]:
        return keys & mine

    for which in listing.Which:
        asked, keys, pages = listing.Asked(which=which), [], 0
        while True:
            found = await listing.look(store, asked, readable)
            keys += [row.key for row in found.rows]
            pages += 1
            assert len(found.rows) <= listing.SHOWN
            if found.after is None:
                break
            asked = listing.Asked(which=which, after=found.after)
        assert len(keys) == len(set(keys))
        assert set(keys) <= mine
        assert pages <= len(keys) // listing.SHOWN + 1
        if which is listing.Which.ALL:
            assert set(keys) == mine


async def test_of_a_reused_key_the_newest_is_listed_and_both_are_shown(store: SqlStore, ada: httpx.AsyncClient) -> None:
    old = await created(store, settled(fresh("reused", command="old")))
    new = await store.create(fresh("reused", command="new"), commit=commit_id(), actor="person ada", new=True)
    assert (await ada.get("/", params={"show": "all"})).text.count("reused</a>") == 1
    assert "command old" in text_of(await shown(ada, old))
    assert "command new" in text_of(await shown(ada, new))
    assert "command new" in text_of(await ada.get("/job", params={"key": "reused"}))


# --- what is asked


async def test_hold_and_release(floor: Floor, ada: httpx.AsyncClient) -> None:
    record = await floor.submitted("train")
    page = await followed(ada, await asked(ada, record, "hold", reason="  the disk\n is full "))
    assert "Committed as revision 2 by person ada: hold 1 is asked for by person ada: the disk is full" in text_of(page)
    assert [hold.reason for hold in (await floor.store.read("train")).holds] == ["the disk is full"]
    page = await followed(ada, await asked(ada, record, "release"))
    assert "Committed as revision 3 by person ada: hold 1 is lifted" in text_of(page)
    assert all(hold.lifted for hold in (await floor.store.read("train")).holds)


async def test_a_hold_needs_a_reason(floor: Floor, ada: httpx.AsyncClient) -> None:
    record = await floor.submitted("train")
    for reason in ("", "  \n ", "x" * 1001):
        answer = await asked(ada, record, "hold", reason=reason)
        assert answer.status_code == 400
        assert "Nothing was done" in text_of(answer)
    assert (await floor.store.read("train")).revision == 1


async def test_a_cancel_is_asked_once_more_and_a_second_one_changes_nothing(
    floor: Floor, ada: httpx.AsyncClient
) -> None:
    record = await floor.submitted("train")
    assert re.search(r'action="[^"]*/job/cancel', (await shown(ada, record)).text) is None
    page = await followed(ada, await asked(ada, record, "cancel", reason="wrong data"))
    assert "It is cancelled by person ada: wrong data" in text_of(page)
    again = await followed(ada, await asked(ada, record, "cancel", reason="still wrong"))
    assert "Committed as revision 2" in text_of(again)
    assert (await floor.store.read("train")).revision == 2


async def test_a_job_that_was_over_before_is_not_said_to_be_cancelled(floor: Floor, ada: httpx.AsyncClient) -> None:
    await floor.submitted("train", "true")
    record = await floor.until("train", has_outcome)
    answer = await asked(ada, record, "cancel")
    assert answer.status_code == 409
    assert "The job was over before: it has succeeded, and that stands." in text_of(answer)


async def test_a_persons_word_about_what_has_moved_on_is_refused(floor: Floor, ada: httpx.AsyncClient) -> None:
    await floor.submitted("train", "exit 3")
    record = await floor.until("train", waits)
    page = (await shown(ada, record)).text
    await floor.client.hold("train", reason="something else came in between")
    before = await floor.store.read("train")
    for ask in ("release", "resolve"):
        answer = await sent(ada, record, ask, fields_of(page, ask) | {"result": "failed"})
        assert answer.status_code == 409
        assert "the job has moved on since this page was shown" in text_of(answer)
    assert await floor.store.read("train") == before
    done = await followed(ada, await asked(ada, record, "resolve", result="succeeded", reason="its output is whole"))
    assert "It has succeeded by person ada: its output is whole" in text_of(done)
    outcome = (await floor.store.read("train")).outcome
    assert outcome is not None
    assert outcome.result is Result.SUCCEEDED


async def test_a_stray_is_disposed_of(floor: Floor, ada: httpx.AsyncClient) -> None:
    await floor.submitted("train")
    await floor.until("train", is_running)
    record = await floor.stray("train")
    assert "foreign" in text_of(await ada.get("/"))
    page = await followed(ada, await asked(ada, record, "dispose"))
    assert "stray-1 is disposed" in text_of(page)
    assert (await floor.store.read("train")).object("stray-1").disposed  # type: ignore[union-attr]
    assert re.search(r'action="[^"]*/job/dispose', page.text) is None


async def test_only_what_applies_is_offered(store: SqlStore, ada: httpx.AsyncClient) -> None:
    waiting, over = await created(store, fresh("waiting")), await created(store, settled(fresh("over")))
    offered = {
        record.key: set(re.findall(r"/job/(\w+)\?", (await shown(ada, record)).text)) for record in (waiting, over)
    }
    assert offered == {"waiting": {"hold", "cancel"}, "over": set()}


# --- who may, and from where


async def test_a_viewer_is_shown_no_button_and_refused(floor: Floor, site: str, ada: httpx.AsyncClient) -> None:
    record = await floor.submitted("train")
    form = fields_of((await shown(ada, record)).text, "hold")
    async with httpx.AsyncClient(base_url=site, auth=VIEWER, cookies=ada.cookies) as vic:
        page = await shown(vic, record)
        assert "<form method" not in page.text
        assert "/job/cancel" not in page.text
        assert "You may look at this job" in text_of(page)
        assert (await vic.get("/job/cancel", params={"key": "train"})).status_code == 403
        answer = await sent(vic, record, "hold", {**form, "reason": "no"})
        assert answer.status_code == 403
    async with httpx.AsyncClient(base_url=site) as nobody:
        for path in ("/", "/job?key=train", "/job/cancel?key=train"):
            assert (await nobody.get(path)).status_code == 401
        assert (await sent(nobody, record, "hold", form)).status_code == 401
    assert (await floor.store.read("train")).revision == 1


async def test_only_a_form_of_these_pages_counts(floor: Floor, site: str, ada: httpx.AsyncClient) -> None:
    record = await floor.submitted("train")
    form = fields_of((await shown(ada, record)).text, "hold") | {"reason": "no"}
    origin = site.removesuffix("/some/prefix")
    refused: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"sec-fetch-site": "cross-site"}, form),
        ({"sec-fetch-site": "same-site"}, form),
        ({"origin": "https://evil.example"}, form),
        ({"origin": "null"}, form),
        ({"origin": origin}, {**form, "token": ""}),
        ({"origin": origin}, {**form, "token": form["token"][:-1] + "é"}),
        ({"origin": origin}, {name: value for name, value in form.items() if name != "token"}),
    ]
    for headers, fields in refused:
        answer = await sent(ada, record, "hold", fields, headers)
        assert answer.status_code == 403, (headers, fields)
    async with httpx.AsyncClient(base_url=site, auth=("ada", "x")) as elsewhere:
        assert (await sent(elsewhere, record, "hold", form)).status_code == 403, "another browser's token"
        await shown(elsewhere, record)
        assert (await sent(elsewhere, record, "hold", form)).status_code == 403, "another session's token"
    assert (await floor.store.read("train")).revision == 1
    assert (await sent(ada, record, "hold", form, {"origin": origin})).status_code == 303


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"token=x&token=y", "application/x-www-form-urlencoded"),
        (b"a=" + b"x" * 70_000, "application/x-www-form-urlencoded"),
        (b"&".join(b"f%d=1" % i for i in range(50)), "application/x-www-form-urlencoded"),
        (b"token=\xff", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"token=x", "text/plain"),
    ],
)
async def test_junk_is_refused_in_a_line(floor: Floor, ada: httpx.AsyncClient, body: bytes, kind: str) -> None:
    record = await floor.submitted("train")
    answer = await ada.post(
        "/job/hold", params={"key": record.key}, content=body, headers={**SAME_SITE, "content-type": kind}
    )
    assert answer.status_code == 400
    assert "nothing was done" in text_of(answer).lower()
    assert (await floor.store.read("train")).revision == 1


async def test_a_form_for_another_record_of_the_key_does_nothing(store: SqlStore, ada: httpx.AsyncClient) -> None:
    old = await created(store, fresh("reused", plan=Plan()))
    form = fields_of((await shown(ada, old)).text, "hold") | {"reason": "meant for the old one"}
    await store.commit(settled(old), against=1, commit=commit_id(), actor="person ada", lines=("settled",))
    new = await store.create(replace(fresh("reused"), spec=old.spec), commit=commit_id(), actor="person ada", new=True)
    assert (await sent(ada, old, "hold", form)).status_code == 400
    assert (await store.read("reused")) == new
    assert (await sent(ada, old, "hold", {**form, "uid": "0" * 16})).status_code == 404


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (CommitUnknown("it may have landed"), 503, "Look whether it was done it may have landed"),
        (StoreUnavailable("no database"), 503, "The store does not answer no database"),
    ],
)
async def test_what_is_not_known_is_not_called_undone(
    url: str, monkeypatch: pytest.MonkeyPatch, error: DispatchError, status: int, words: str
) -> None:
    """A database that breaks off in the commit, after which nobody can say."""

    async def broken(*_: object, **__: object) -> Record:
        raise error

    store = open_store(url)
    try:
        record = await created(store, fresh("train"))
        app = Starlette(routes=[Mount(PREFIX, routes=routes(lambda: store, People(), secret=SECRET))])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://here{PREFIX}", auth=ACTOR) as ada:
            form = fields_of((await shown(ada, record)).text, "hold") | {"reason": "no"}
            monkeypatch.setattr(store, "commit", broken)
            answer = await sent(ada, record, "hold", form)
        assert answer.status_code == status
        assert words in text_of(answer)
    finally:
        await store.close()
