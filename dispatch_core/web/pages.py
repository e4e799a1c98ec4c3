"""The pages: the list of jobs, one job, and what a person asks of it.

One rule: a page shows what the store has and commits what a form asks, as the command line would; it decides nothing
and calls no scheduler but for an `explain` that somebody asked for. Every route is admitted before the store is read.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from dispatch_core.client import Client, Explanation
from dispatch_core.errors import BadInput, CommitUnknown, Conflict, DispatchError, NotFound, StoreUnavailable
from dispatch_core.record import Record
from dispatch_core.saying import call_words, rule_words
from dispatch_core.status import status_of
from dispatch_core.stores.contract import Browsed, Change, Listed
from dispatch_core.story import story
from dispatch_core.web import asks, listing, telling
from dispatch_core.web.access import Access, Denied, Right
from dispatch_core.web.forms import Forms, read_form
from dispatch_core.web.rendering import render, static, utc
from dispatch_core.web.timeline import timeline

Opens = Callable[[], Browsed]
"""The one open store of this server; who asks for it does not close it."""

Explain = Callable[[Browsed, Record], Awaitable[Explanation]]
"""Asks the job's scheduler what the next pass would do. Raises DispatchError."""

PROBLEMS: dict[type[DispatchError], tuple[int, str]] = {
    NotFound: (404, "No such job"),
    BadInput: (400, "Not done"),
    StoreUnavailable: (503, "The store does not answer"),
    CommitUnknown: (503, "Look whether it was done"),
}
OTHERWISE = (500, "This cannot be shown")

EXPLAIN_SECONDS = 15.0
"""How long a page waits for a scheduler."""

Handler = Callable[[Request], Awaitable[Response]]


def routes(open_store: Opens, access: Access, *, secret: bytes, explain: Explain | None = None) -> list[BaseRoute]:
    """The routes of the pages, to be mounted anywhere.

    `secret` signs the forms, and is the same in every worker of one server. `explain`: where schedulers can be reached
    from here.
    """
    pages = Pages(open_store, access, Forms(secret), explain)
    return [
        Route("/", pages.answered(pages.jobs), name="dispatch-jobs"),
        Route("/job", pages.answered(pages.job), name="dispatch-job"),
        Route("/job/cancel", pages.answered(pages.sure), name="dispatch-cancel"),
        Route("/job/{ask}", pages.answered(pages.ask), methods=["POST"], name="dispatch-ask"),
        Route("/static/{name}", static),
    ]


class Pages:
    """The pages of one server."""

    def __init__(self, open_store: Opens, access: Access, forms: Forms, explain: Explain | None) -> None:
        self._store = open_store
        self._access = access
        self._forms = forms
        self._explain = explain

    def answered(self, handler: Handler) -> Handler:
        """A handler whose refusals are pages too; who is not known is left to the server, which may ask for a login."""

        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request)
            except Denied as denied:
                if denied.status == 401:
                    raise
                return render(request, "problem.html", denied.status, title="Not allowed", text=denied.line)
            except DispatchError as error:
                status, title = next((told for kind, told in PROBLEMS.items() if isinstance(error, kind)), OTHERWISE)
                return render(request, "problem.html", status, title=title, text=str(error))

        return endpoint

    async def jobs(self, request: Request) -> Response:
        """The list."""
        who = await self._access.admit(request, Right.READ)
        asked = listing.read_asked(request.query_params)
        found = await listing.look(self._store(), asked, partial(self._access.readable, request))
        tabs = [(which == asked.which, words, asked.query(which)) for which, words in listing.WHICH_WORDS.items()]
        following = asked.query(after=found.after) if found.after is not None else None
        return render(request, "jobs.html", asked=asked, found=found, tabs=tabs, following=following, who=who)

    async def job(self, request: Request) -> Response:
        """One job: `key`, and the record's `uid` where it is not the newest under it."""
        key = _key(request.query_params.get("key"))
        who = await self._access.admit(request, Right.READ, key)
        row = await self._row(key, request.query_params.get("uid"))
        return await self._shown(request, row, who)

    async def sure(self, request: Request) -> Response:
        """Asks once more before a cancel, which is final."""
        key = _key(request.query_params.get("key"))
        who = await self._access.admit(request, Right.ACT, key)
        row = await self._row(key, request.query_params.get("uid"))
        nonce = self._forms.nonce(request)
        page = render(request, "cancel.html", job=row, who=who, token=self._forms.token(nonce, who))
        self._forms.remember(request, page, nonce)
        return page

    async def ask(self, request: Request) -> Response:
        """Commit what a form asks for; then show the job again, with what came of it."""
        # The key is in the address as well, so that who asks is admitted before a body is read.
        key = _key(request.query_params.get("key"))
        who = await self._access.admit(request, Right.ACT, key)
        fields = await read_form(request)
        self._forms.check(request, fields, who)
        try:
            done = await asks.carry_out(Client(self._store(), who), request.path_params["ask"], key, fields)
        except Conflict:
            return await self._refused(request, key, fields, who, 409, MOVED_ON)
        except BadInput as error:
            return await self._refused(request, key, fields, who, 400, f"Nothing was done: {error}.")
        if done.already:
            return await self._refused(request, key, fields, who, 409, done.already)
        base = request.scope.get("root_path", "").rstrip("/")
        query = urlencode({"key": key, "uid": fields["uid"], "done": done.revision})
        return RedirectResponse(f"{base}/job?{query}", 303)

    async def _refused(
        self, request: Request, key: str, fields: dict[str, str], who: str, status: int, text: str
    ) -> Response:
        """The job as it is now, with why nothing was done."""
        row = await self._row(key, fields.get("uid"))
        return await self._shown(request, row, who, status=status, refusal=text)

    async def _row(self, key: str, uid: str | None) -> Listed:
        """A job's row in the list, whether or not its record can be read. Raises NotFound."""
        store = self._store()
        uid = uid or (await store.read(key)).uid
        rows = await store.jobs(uids=frozenset({uid}))
        if not rows or rows[0].key != key:
            raise NotFound(f"there is no job {key!r} with the record {uid}")
        return rows[0]

    async def _shown(
        self, request: Request, row: Listed, who: str, *, status: int = 200, refusal: str = ""
    ) -> Response:
        changes, unread = await self._history(row)
        told: dict[str, Any] = {
            "row": row,
            "who": who,
            "refusal": refusal or unread,
            "done": _done(request, changes) if not refusal else None,
            "line": timeline(changes, whole=request.query_params.get("history") == "all"),
        }
        if row.record is None:
            return render(request, "unreadable.html", status, **told)
        shown = status_of(row.record, row)
        nonce = self._forms.nonce(request)
        acts = await self._may_act(request, row.key)
        page = render(
            request,
            "job.html",
            status,
            **told,
            **_described(row.record),
            job=row.record,
            shown=shown,
            headline=telling.headline(row.record, shown),
            points=telling.why_not_running(row.record, shown),
            launches=telling.launches(shown),
            foreign=telling.foreign(shown),
            as_of=telling.as_of(row.record),
            open=asks.open_to(row.record) if acts else asks.Open(),
            acts=acts,
            token=self._forms.token(nonce, who) if acts else "",
            can_explain=self._explain is not None and not row.record.settled,
            explained=await self._explained(request, row.record),
        )
        if acts:
            self._forms.remember(request, page, nonce)
        return page

    async def _history(self, row: Listed) -> tuple[list[Change], str]:
        """A job's commits, or why they cannot be read."""
        try:
            return await self._store().history(row.key, row.uid), ""
        except StoreUnavailable:
            raise
        except DispatchError as error:
            return [], str(error)

    async def _may_act(self, request: Request, key: str) -> bool:
        try:
            await self._access.admit(request, Right.ACT, key)
        except Denied:
            return False
        return True

    async def _explained(self, request: Request, record: Record) -> dict[str, Any] | None:
        """What the scheduler says of it now, where that was asked for."""
        if self._explain is None or "explain" not in request.query_params or record.settled:
            return None
        try:
            async with asyncio.timeout(EXPLAIN_SECONDS):
                told = await self._explain(self._store(), record)
        except TimeoutError:
            return {"problem": f"the scheduler did not answer within {EXPLAIN_SECONDS:g} s"}
        except DispatchError as error:
            return {"problem": str(error)}
        decision = told.decision
        lines = story(told.record, decision.record) if decision.record is not None else ()
        return {
            "problem": "",
            "commits": decision.record is not None,
            "lines": lines,
            "calls": [call_words(call, utc) for call in decision.calls],
            "wake": decision.wake_seconds,
            "notes": decision.notes,
            "why": told.why,
            "gate": sorted(told.gate, key=lambda condition: condition.holds),
        }


MOVED_ON = "Nothing was done: the job has moved on since this page was shown. Look again, then ask again."


def _key(key: str | None) -> str:
    if not key:
        raise BadInput("the address of this page names no job")
    return key


def _done(request: Request, changes: list[Change]) -> Change | None:
    """The commit that a form came to, as the history has it: an address alone can claim nothing."""
    done = request.query_params.get("done", "")
    return next((change for change in changes if str(change.revision) == done), None)


def _described(record: Record) -> dict[str, Any]:
    """The spec and the plan in words; of a secret only where it is read from."""
    spec = record.spec
    return {
        "command": shlex.join(spec.command),
        "rules": [(rule.name, rule_words(rule), record.used(rule.name), rule.limit) for rule in record.plan.rules],
        "options": {name: value if isinstance(value, str) else repr(value) for name, value in spec.options.items()},
        "secrets": {name: f"from {source.source} {source.name}" for name, source in spec.secret_environment.items()},
    }
