"""What a server of the store refuses, whatever it runs in: the same requests to `dispatch serve` and to Airflow's API
server, each with what it is answered with. Nothing is written for any of them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import msgspec

from dispatch_core.record import Record, encode
from tests.stores.records import fresh, held

TEN_MB = 10_000_000


class Refused(NamedTuple):
    """One request, who sends it, and the answer."""

    what: str
    who: str | None
    """None: nobody."""
    method: str
    path: str
    status: int
    error: str
    body: Any = None
    headers: Mapping[str, str] = {}


def document(record: Record) -> Any:
    return json.loads(encode(record))


def refusals(record: Record, *, reader: str, actor: str, writer: str) -> Iterator[Refused]:
    """Given a record at its second revision, and people who may read, act and store."""
    commit = {"record": document(held(record, "mallory")), "commit": "evil", "actor": "mallory", "lines": ["x"]}
    create = {"record": document(fresh("mallory")), "commit": "evil", "actor": "mallory"}
    lease = {"uid": record.uid, "owner": "one", "epoch": 1}
    claim = {"key": record.key, "uid": record.uid, "owner": "mallory", "seconds": 60}
    prune = {"before": "2999-01-01T00:00:00Z"}
    newest, stale = {"if-match": f'"{record.revision}"'}, {"if-match": f'"{record.revision - 1}"'}
    named = f"?key={record.key}"
    for who, status in ((None, 401), (reader, 403), (actor, 403)):
        yield Refused("a commit", who, "PUT", "/record", status, "Denied", commit, newest)
        yield Refused("a create", who, "POST", "/record", status, "Denied", create)
        yield Refused("a claim", who, "POST", "/lease", status, "Denied", claim)
        yield Refused("a renewal", who, "PUT", "/lease", status, "Denied", {"lease": lease, "seconds": 60})
        yield Refused("a release", who, "DELETE", "/lease", status, "Denied", {"lease": lease})
        yield Refused("a prune", who, "POST", "/prune", status, "Denied", prune)
    yield Refused("a read", None, "GET", f"/record{named}", 401, "Denied")
    yield Refused("a history", None, "GET", f"/history{named}", 401, "Denied")
    yield Refused("a list", None, "POST", "/jobs", 401, "Denied", {})
    yield Refused("revisions", None, "POST", "/revisions", 401, "Denied", {"records": []})
    yield Refused("a stale If-Match", writer, "PUT", "/record", 412, "Conflict", commit, stale)
    yield Refused("no If-Match", writer, "PUT", "/record", 400, "BadInput", commit)
    yield Refused("any revision", writer, "PUT", "/record", 400, "BadInput", commit, {"if-match": "*"})
    more = {**commit, "also": 1}
    yield Refused("an unknown field", writer, "PUT", "/record", 400, "BadInput", more, newest)
    inner = {**commit, "record": {**commit["record"], "also": 1}}
    yield Refused("an unknown field of the record", writer, "PUT", "/record", 400, "BadInput", inner, newest)
    yield Refused("an unknown field of a create", writer, "POST", "/record", 400, "BadInput", {**create, "also": 1})
    plan = {**create, "record": {**create["record"], "key": ""}}
    yield Refused("a record that cannot be", writer, "POST", "/record", 400, "BadInput", plan)
    yield Refused("no JSON", writer, "POST", "/record", 400, "BadInput", b"{")
    form = {"content-type": "application/x-www-form-urlencoded"}
    yield Refused("a form", writer, "POST", "/record", 400, "BadInput", create, form)
    elsewhere = {"sec-fetch-site": "cross-site"}
    yield Refused("another site's page", writer, "POST", "/record", 403, "Denied", create, elsewhere)
    large = msgspec.json.encode({**create, "actor": "m" * TEN_MB})
    yield Refused("10 MB", writer, "POST", "/record", 413, "BadInput", large)
    yield Refused("10 MB against a revision", writer, "PUT", "/record", 413, "BadInput", large, newest)


def send(client: httpx.Client, refused: Refused, authorization: Mapping[str, str]) -> httpx.Response:
    """Send it; the client's address is where dispatch is."""
    headers = {"content-type": "application/json", **refused.headers}
    if refused.who is not None:
        headers["authorization"] = authorization[refused.who]
    content = refused.body if isinstance(refused.body, bytes | None) else msgspec.json.encode(refused.body)
    return client.request(refused.method, f"api{refused.path}", content=content, headers=headers)


def assert_refused(answer: httpx.Response, refused: Refused) -> None:
    told = (answer.status_code, answer.headers.get("dispatch-store"), answer.json().get("error"))
    assert told == (refused.status, "1", refused.error), f"{refused.what} of {refused.who}: {answer.text[:300]}"
    assert "\n" not in answer.json()["text"]
