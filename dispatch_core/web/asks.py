"""What a viewer may ask of a job on its page, where each applies, and how it is carried out.

One rule: a word that answers what was shown (release, resolve, dispose) is committed against the revision that was
shown, and refused if the job has moved on. Cancel and hold mean the same whatever happened since, so they name the
record alone: a job that moves every second could else never be cancelled from a page.
"""

from __future__ import annotations

from collections.abc import Mapping

from dispatch_core.client import Client
from dispatch_core.errors import BadInput
from dispatch_core.plan import Value
from dispatch_core.reasons import CHOICE, Reason
from dispatch_core.record import Answer, Record, Result, State

REASON_LENGTH = 1000
"""Characters of a reason."""


class Open(Value, frozen=True):
    """What applies to a job now."""

    cancel: bool = False
    hold: bool = False
    release: str = ""
    """What a release would do; "" where there is nothing to release."""
    resolve: bool = False
    dispose: tuple[str, ...] = ()
    """Foreign objects by id, attempts as `2.1`."""

    @property
    def any(self) -> bool:
        return bool(self.cancel or self.hold or self.release or self.resolve or self.dispose)


def open_to(record: Record) -> Open:
    """What may be asked of a job as it is."""
    if record.settled:
        return Open()
    going = record.outcome is None
    reason = record.wait.reason if record.wait is not None else None
    return Open(
        cancel=going,
        hold=going,
        release=_release(record, reason) if going else "",
        resolve=going and reason in CHOICE,
        dispose=(*_strays(record), *(_unmatched(record) if reason is Reason.UNMATCHED else ())),
    )


def _release(record: Record, reason: Reason | None) -> str:
    if reason in CHOICE:
        return "Launches it again."
    if reason is Reason.GONE:
        return "Says that the earlier object is gone, and runs no more."
    return "Lets it start." if any(not hold.lifted for hold in record.holds) else ""


def _strays(record: Record) -> tuple[str, ...]:
    return tuple(o.id for o in record.objects if o.foreign and not o.disposed and o.state is not State.ENDED)


def _unmatched(record: Record) -> tuple[str, ...]:
    """Attempts that may have made an object that nobody has seen."""
    return tuple(
        f"{submission.number}.{attempt.number}"
        for submission in record.submissions
        for attempt in submission.attempts
        if not attempt.disposed
        and (attempt.reply is None or attempt.reply.answer is Answer.UNKNOWN)
        and all(object.attempt != attempt.number for object in record.of(submission.number))
    )


class Done(Value, frozen=True):
    """What came of it."""

    revision: int
    """The one that holds it."""
    already: str = ""
    """Why nothing was to be done; "" where it was."""


async def carry_out(client: Client, ask: str, key: str, fields: Mapping[str, str]) -> Done:
    """Commit what a form asks for. Raises BadInput, Conflict, NotFound, StoreUnavailable, CommitUnknown."""
    uid, reason = fields.get("uid", ""), _reason(fields)
    if ask == "cancel":
        got = await client.cancel(key, uid=uid, reason=reason)
        over = got.result is not Result.CANCELLED
        already = f"The job was over before: it has {got.result}, and that stands." if over else ""
        return Done(revision=got.revision, already=already)
    if ask == "hold":
        if not reason:
            raise BadInput("say why it is to be held: whoever looks at the job is shown the reason")
        return Done(revision=(await client.hold(key, uid=uid, reason=reason)).revision)
    shown = _revision(fields)
    if ask == "release":
        return Done(revision=(await client.release(key, uid=uid, revision=shown)).revision)
    if ask == "dispose":
        what = fields.get("what", "")
        return Done(revision=(await client.dispose(key, what, uid=uid, revision=shown)).revision)
    result = fields.get("result", "")
    if ask != "resolve" or result not in (Result.SUCCEEDED, Result.FAILED):
        raise BadInput("this form is not one that these pages make")
    done = await client.resolve(key, Result(result), uid=uid, reason=reason, revision=shown)
    return Done(revision=done.revision)


def _reason(fields: Mapping[str, str]) -> str:
    """A reason in one line."""
    reason = " ".join(fields.get("reason", "").split())
    if len(reason) > REASON_LENGTH:
        raise BadInput(f"the reason has {len(reason)} characters; {REASON_LENGTH} are allowed")
    return reason


def _revision(fields: Mapping[str, str]) -> int:
    written = fields.get("revision", "")
    if not (written.isascii() and written.isdecimal() and len(written) < 10):
        raise BadInput("this form is not one that these pages make: it names no revision")
    return int(written)
