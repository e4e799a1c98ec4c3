"""The store's contract over HTTP: every method is a route, and the revision is the ETag.

One rule: a request is admitted, then read, within a bound and strictly, then passed to the store as it is; whatever is
wrong with it, nothing is written. Nothing is decided here, and no error is worded anew.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dispatch_core.errors import BadInput, DispatchError, NotFound
from dispatch_core.record import Record, encode
from dispatch_core.stores import messages
from dispatch_core.stores.contract import Store
from dispatch_core.stores.messages import LARGEST_BYTES, MARK, PREFIX, PROTOCOL, Refusal
from dispatch_core.web.access import Access, Denied, Right, refuse_other_sites

Stored = Callable[[], Store]
"""The one open store of this server; who asks for it does not close it."""

T = TypeVar("T")
Answers = Callable[[Request, Store], Awaitable[Response]]

_REVISION = re.compile(r'"(\d{1,18})"')


class _TooLarge(BadInput):
    """More than a request may hold; what was left of it was not read."""


def routes(open_store: Stored, access: Access) -> list[BaseRoute]:
    """The routes of the store, below `PREFIX`."""

    def at(path: str, method: str, right: Right, answers: Answers, *, keyed: bool = False) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answer(request, right, keyed, answers)

        return Route(PREFIX + path, endpoint, methods=[method])

    async def _answer(request: Request, right: Right, keyed: bool, answers: Answers) -> Response:
        try:
            if request.method != "GET":
                refuse_other_sites(request)
            await access.admit(request, right, _parameter(request, "key") if keyed else "")
            return _marked(await answers(request, open_store()))
        except Denied as denied:
            return _refused(denied.status, Refusal(error=messages.DENIED, text=denied.line))
        except _TooLarge as error:
            return _refused(413, Refusal(error="BadInput", text=str(error)))
        except DispatchError as error:
            return _refused(*messages.told(error))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is left to read it

    return [
        at("/record", "GET", Right.READ, _read, keyed=True),
        at("/record", "PUT", Right.STORE, _commit),
        at("/record", "POST", Right.STORE, _create),
        at("/history", "GET", Right.READ, _history, keyed=True),
        at("/jobs", "POST", Right.READ, partial(_jobs, access=access)),
        at("/revisions", "POST", Right.READ, partial(_revisions, access=access)),
        at("/lease", "POST", Right.STORE, _acquire),
        at("/lease", "PUT", Right.STORE, _renew),
        at("/lease", "DELETE", Right.STORE, _release),
        at("/prune", "POST", Right.STORE, _prune),
    ]


async def _create(request: Request, store: Store) -> Response:
    asked = await _body(request, messages.Creating)
    return _record(await store.create(asked.record, commit=asked.commit, actor=asked.actor, new=asked.new))


async def _read(request: Request, store: Store) -> Response:
    return _record(await store.read(_parameter(request, "key"), request.query_params.get("uid")))


async def _commit(request: Request, store: Store) -> Response:
    against = _against(request)
    asked = await _body(request, messages.Committing)
    done = await store.commit(
        asked.record,
        against=against,
        commit=asked.commit,
        actor=asked.actor,
        lines=asked.lines,
        lease=asked.lease,
    )
    return Response(status_code=204, headers={"etag": f'"{done.revision}"'})


async def _history(request: Request, store: Store) -> Response:
    return _json(await store.history(_parameter(request, "key"), request.query_params.get("uid")))


async def _jobs(request: Request, store: Store, access: Access) -> Response:
    asked = await _body(request, messages.Finding)
    rows = await store.jobs(settled=asked.settled, key_prefix=asked.key_prefix, uids=asked.uids)
    shown = await access.readable(request, frozenset(row.key for row in rows))
    return _json([messages.Found.of(row) for row in rows if row.key in shown])


async def _revisions(request: Request, store: Store, access: Access) -> Response:
    asked = await _body(request, messages.Asking)
    shown = await access.readable(request, frozenset(key for key, _ in asked.records))
    records = [(key, uid) for key, uid in asked.records if key in shown]
    told = await asyncio.gather(*(store.revision(*one) for one in records), return_exceptions=True)
    known = {}
    for (_, uid), revision in zip(records, told, strict=True):
        if isinstance(revision, int):
            known[uid] = revision
        elif not isinstance(revision, NotFound):
            raise revision
    return _json(known)


async def _acquire(request: Request, store: Store) -> Response:
    asked = await _body(request, messages.Claiming)
    record = await store.read(asked.key, asked.uid)
    return _json(await store.acquire(record, asked.owner, asked.seconds))


async def _renew(request: Request, store: Store) -> Response:
    asked = await _body(request, messages.Renewing)
    await store.renew(asked.lease, asked.seconds)
    return Response(status_code=204)


async def _release(request: Request, store: Store) -> Response:
    await store.release((await _body(request, messages.Releasing)).lease)
    return Response(status_code=204)


async def _prune(request: Request, store: Store) -> Response:
    asked = await _body(request, messages.Pruning)
    return _json(await store.prune(asked.before, trial=asked.trial))


def _parameter(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise BadInput(f"the address of this request has no {name}")
    return value


def _against(request: Request) -> int:
    """The revision that a commit is against."""
    found = _REVISION.fullmatch(request.headers.get("if-match", ""))
    if found is None:
        raise BadInput('If-Match is not the revision that was read, like "3"; nothing was written')
    return int(found[1])


async def _body(request: Request, kind: type[T]) -> T:
    """The body as such a value; one that is too long is not read to its end."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise BadInput("the body is not application/json; nothing was written")  # so that no form can send one
    text = await _bytes(request)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"the body is not what this server takes: {error}; nothing was written") from None


async def _bytes(request: Request) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > LARGEST_BYTES:
        raise _too_large()
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BYTES:
            raise _too_large()
    return bytes(body)


def _too_large() -> _TooLarge:
    return _TooLarge(f"the body is longer than {LARGEST_BYTES} bytes, and nothing was written")


def _record(record: Record) -> Response:
    headers = {"etag": f'"{record.revision}"'}
    return Response(encode(record), headers=headers, media_type="application/json")


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _refused(status: int, refusal: Refusal) -> Response:
    answer = _marked(_json(refusal, status))
    if status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def _marked(answer: Response) -> Response:
    answer.headers[MARK] = PROTOCOL
    answer.headers["cache-control"] = "no-store"
    return answer
