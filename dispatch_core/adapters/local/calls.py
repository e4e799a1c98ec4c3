"""The calls that change an object, each under its claim, with its deadline judged right before its effect.

One rule: `refused` and `late` are said only where nothing happened; what broke once the effect may have been reached is
`unknown`. Identity, run and deadline are judged while the claim is held. These functions block, for a bounded time: the
adapter calls them in threads.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from dispatch_core.adapters.contract import Launch, Target
from dispatch_core.adapters.local import spool
from dispatch_core.adapters.local.leftovers import Marks
from dispatch_core.adapters.local.look import Look, look, node_failure, read_tags
from dispatch_core.record import Answer, Reply, State

CLAIM_SECONDS = 1.0
"""How long a call waits for the object's claim."""

STOPPING_SECONDS = 3.0
"""How long a StopJob goes on to another object."""

DONE = Reply(answer=Answer.DONE)

Effect = Callable[[str], None]
Judge = Callable[[str, Look], Reply | Effect]
"""Given the folder of the newest run and its look: a reply, or what is to be done."""


def refused(text: str) -> Reply:
    return Reply(answer=Answer.REFUSED, text=text)


def unknown(text: str) -> Reply:
    return Reply(answer=Answer.UNKNOWN, text=text)


LATE = Reply(answer=Answer.LATE, text="the host got to it after its deadline; nothing was done")


def id_of(name: str) -> str:
    """The id of the one object of this name."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _is_taken(error: Exception) -> bool:
    """Whether a folder was not moved because another is in its place."""
    return isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY)


def nothing(_: str) -> None:
    """The effect of a call that finds all as it wants it."""


class Calls:
    """The changing side of one spool."""

    def __init__(self, root: str, clock: Callable[[], datetime], slots: int, grace_seconds: float) -> None:
        self.root, self.clock, self.slots, self.grace_seconds = root, clock, slots, grace_seconds
        self.objects = os.path.join(root, spool.OBJECTS)
        self.staging = os.path.join(root, spool.STAGING)

    def folders(self) -> list[str]:
        """The folder of every object in the spool. Raises OSError."""
        return [os.path.join(self.objects, id) for id in sorted(os.listdir(self.objects)) if spool.is_id(id)]

    def start(
        self, launch: Launch, secrets: Mapping[str, str], inherited: Mapping[str, str], deadline: datetime
    ) -> Reply:
        """Make the object in the staging folder, and move it among the objects if it is not too late.

        Its id comes from its name, so a Start that is carried out twice meets itself: in the staging folder, or where
        the object is put.
        """
        id = id_of(launch.name)
        staged = os.path.join(self.staging, id)
        try:
            os.mkdir(staged, 0o700)
        except FileExistsError:
            return unknown("another copy of this call has begun the launch; this one did nothing")
        except OSError as error:
            return refused(f"the object could not be made: {error}")
        return self._make(staged, id, launch, secrets, inherited, deadline)

    def _make(
        self,
        staged: str,
        id: str,
        launch: Launch,
        secrets: Mapping[str, str],
        inherited: Mapping[str, str],
        deadline: datetime,
    ) -> Reply:
        """Fill the folder that was staged, and put it in its place, unless the object is there."""
        placed = os.path.join(self.objects, id)
        moving = False
        try:
            claim = self._stage(staged, id, launch, secrets, inherited)
            try:
                if self.clock() > deadline:
                    shutil.rmtree(staged, ignore_errors=True)
                    return LATE
                moving = True
                os.rename(staged, placed)
                spool.settle(self.objects)
            finally:
                spool.drop(claim)
        except (OSError, spool.Unwritten) as error:
            if moving and _is_taken(error):
                shutil.rmtree(staged, ignore_errors=True)
                return Reply(answer=Answer.DONE, text=id)
            if moving:
                return unknown(f"the object may not have been made: {error}")
            shutil.rmtree(staged, ignore_errors=True)
            return refused(f"the object could not be made: {error}")
        return Reply(answer=Answer.DONE, text=id)

    def _stage(
        self, staged: str, id: str, launch: Launch, secrets: Mapping[str, str], inherited: Mapping[str, str]
    ) -> int:
        """Write all that the object consists of; its claim, held."""
        spec = launch.spec
        claim = spool.make_held(os.path.join(staged, spool.CLAIM))
        if claim is None:
            raise spool.Unwritten("somebody else has the claim of an object that is being made")
        try:
            told = {
                "id": id,
                "key": launch.key,
                "uid": launch.uid,
                "submission": launch.submission,
                "attempt": launch.attempt,
                "name": launch.name,
                "may_requeue": launch.may_requeue,
                "previous_cause": launch.previous_cause,
                "grace_seconds": self.grace_seconds,
                "inherited": dict(inherited),
                "spec": {
                    "command": list(spec.command),
                    "working_directory": spec.working_directory,
                    "time_limit_seconds": spec.time_limit_seconds,
                    "signal_before_limit": spec.signal_before_limit,
                    "signal_before_limit_seconds": spec.signal_before_limit_seconds,
                    "environment": spec.environment,
                },
            }
            os.makedirs(spool.run_folder(staged, 1), 0o700)
            if secrets:
                spool.write_json(os.path.join(staged, spool.SECRETS), dict(secrets))
            spool.settle(os.path.join(staged, spool.RUNS))
            spool.write(os.path.join(staged, spool.TAGS), json.dumps(told).encode())
        except BaseException:
            spool.drop(claim)
            raise
        return claim

    def open(self, target: Target, deadline: datetime) -> Reply:
        """Open the gate, and start the runner. A runner that cannot be started is started by a later listing."""

        def judge(_: str, seen: Look) -> Reply | Effect:
            if seen.opened:
                return nothing
            if seen.state is State.ENDED:
                return refused(f"run {seen.run} of object {target.id} was stopped; it cannot be opened")
            return self._write_open

        reply = self._change(target, deadline, judge)
        if reply.answer is Answer.DONE:
            self.bring_up(os.path.join(self.objects, target.id))
        return reply

    def _write_open(self, where: str) -> None:
        told = {"slots": self.slots, "at": self.clock().isoformat()}
        spool.write_json(os.path.join(where, spool.OPEN), told)

    def stop(self, target: Target, deadline: datetime) -> Reply:
        """Mark the run as stopped: its runner ends it. Without a runner, end here what is left of it."""
        reply = self._change(target, deadline, self._judge_stop)
        if reply.answer is Answer.DONE:
            self.end_failed(os.path.join(self.objects, target.id))
        return reply

    @staticmethod
    def _judge_stop(where: str, seen: Look) -> Reply | Effect:
        if seen.state is State.ENDED or spool.has(where, spool.STOP):
            return nothing
        return lambda where: spool.write(os.path.join(where, spool.STOP), b"")

    def shut(self, target: Target, deadline: datetime) -> Reply:
        """Always refused: a requeued run comes back gated anyway."""
        return self._change(
            target, deadline, lambda _, seen: refused("nothing to shut: a requeued run is gated anyway")
        )

    def hold(self, target: Target, deadline: datetime) -> Reply:
        """Set the hold bit of this run."""

        def judge(_: str, seen: Look) -> Reply | Effect:
            if seen.launched or seen.state is State.ENDED:
                return refused(f"run {seen.run} of object {target.id} has begun or ended; it cannot be held")
            return nothing if seen.hold else lambda where: spool.write(os.path.join(where, spool.HOLD), b"")

        return self._change(target, deadline, judge)

    def release(self, target: Target, deadline: datetime) -> Reply:
        """Clear the hold bit of this run."""

        def judge(_: str, seen: Look) -> Reply | Effect:
            return (lambda where: os.unlink(os.path.join(where, spool.HOLD))) if seen.hold else nothing

        return self._change(target, deadline, judge)

    def requeue(self, target: Target, deadline: datetime) -> Reply:
        """Make the next run: gated, and without a hold, since both are marks of a run."""

        def judge(where: str, seen: Look) -> Reply | Effect:
            tags = read_tags(os.path.join(self.objects, target.id))
            if tags is None or not tags.may_requeue:
                return refused(f"object {target.id} was not started as one that may be requeued")
            if seen.state is not State.ENDED:
                return refused(f"run {seen.run} of object {target.id} is {seen.state}; only an ended one is requeued")
            return self._next_run

        return self._change(target, deadline, judge)

    @staticmethod
    def _next_run(where: str) -> None:
        runs, run = os.path.split(where)
        os.mkdir(os.path.join(runs, str(int(run) + 1)), 0o700)
        spool.settle(runs)

    def _change(self, target: Target, deadline: datetime, judge: Judge) -> Reply:
        """One call on one run: judged, and carried out, under the object's claim."""
        folder = os.path.join(self.objects, target.id)
        acting = False
        try:
            if not spool.is_id(target.id):
                raise spool.Gone(folder)
            with spool.claimed(folder, seconds=CLAIM_SECONDS):
                tags = read_tags(folder)
                if tags is None or tags.name != target.name:
                    return refused(f"object {target.id} is not {target.name}; nothing was done")
                seen = look(folder)
                if seen.run != target.run:
                    return refused(
                        f"object {target.id} is on run {seen.run}, not on run {target.run}; nothing was done"
                    )
                where = spool.run_folder(folder, seen.run)
                verdict = judge(where, seen)
                if isinstance(verdict, Reply):
                    return verdict
                if self.clock() > deadline:
                    return LATE
                acting = True
                verdict(where)
                return DONE
        except spool.Gone:
            return refused(f"there is no object {target.id}")
        except spool.Busy:
            return unknown(f"object {target.id} was busy with another call; nothing was done")
        except spool.Unwritten as error:
            return refused(f"nothing was done: {error}")
        except OSError as error:
            return unknown(f"{'it may have been done' if acting else 'nothing was done'}: {error}")

    def stop_job(self, names: tuple[str, ...], deadline: datetime) -> Reply:
        """Stop the newest run of every object that has one of these names."""
        replies: list[Reply] = []
        until = time.monotonic() + STOPPING_SECONDS
        try:
            for folder in self.folders():
                tags = read_tags(folder)
                if time.monotonic() > until:
                    return unknown("it took too long to stop everything")
                if tags is not None and tags.name in names:
                    replies += self._stop_newest(tags.id, tags.name, deadline)
        except OSError as error:
            return unknown(f"not everything could be looked at: {error}")
        answers = {reply.answer for reply in replies}
        if answers == {Answer.LATE} or (not answers and self.clock() > deadline):
            return LATE
        if answers <= {Answer.DONE}:
            return DONE
        return unknown("; ".join(sorted({reply.text for reply in replies if reply.answer is not Answer.DONE})))

    def _stop_newest(self, id: str, name: str, deadline: datetime) -> list[Reply]:
        """Stop whatever run it is on, also where it is requeued meanwhile; nothing where it is not there any more."""
        folder = os.path.join(self.objects, id)
        try:
            run = spool.newest_run(folder)
        except spool.Gone:
            return []
        reply = self.stop(Target(id=id, name=name, run=run), deadline)
        if reply.answer is Answer.REFUSED:
            reply = self.stop(Target(id=id, name=name, run=run + 1), deadline)
        return [reply] if os.path.lexists(folder) else []

    def bring_up(self, folder: str) -> None:
        """Start the runner of an open run that lacks one. More than one does no harm: the second gives up."""
        try:
            with spool.claimed(folder, seconds=CLAIM_SECONDS):
                seen = look(folder)
            if seen.lacks_runner:
                spawn(folder, seen.run)
        except (OSError, spool.Busy, spool.Gone, subprocess.SubprocessError):
            return

    def end_failed(self, folder: str) -> None:
        """Where a run's runner left without a word: end what it left alive, and write the end once nothing is."""
        try:
            with spool.claimed(folder, seconds=CLAIM_SECONDS):
                seen = look(folder)
                where = spool.run_folder(folder, seen.run)
                if seen.state is State.ENDING and not seen.alive:
                    self._end_failed(where, Marks(where, os.path.basename(folder), seen.run), seen)
        except (OSError, spool.Busy, spool.Gone, spool.Unwritten):
            return

    @staticmethod
    def _end_failed(where: str, marks: Marks, seen: Look) -> None:
        until = time.monotonic() + CLAIM_SECONDS / 2
        while left := marks.found():
            marks.signal(left, 9)
            if time.monotonic() > until:
                return
            time.sleep(spool.TRY_AGAIN_SECONDS)
        if seen.failed and not spool.is_left(where):
            end = node_failure(where)
            spool.write_json(os.path.join(where, spool.END), {"cause": str(end.cause), "message": end.message})


def spawn(folder: str, run: int) -> None:
    """Start a runner that outlives this program and is nobody's child: it forks once more and goes its own way."""
    log = os.open(
        os.path.join(spool.run_folder(folder, run), spool.RUNNER_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    main = str(Path(__file__).with_name("__main__.py"))
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", main, folder, str(run)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
            start_new_session=True,
            timeout=CLAIM_SECONDS * 3,
            check=False,
        )
    finally:
        os.close(log)
