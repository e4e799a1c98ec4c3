"""Checks of what reaches a payload, and of what it says.

One rule: values arrive whole, and a secret arrives nowhere else.
"""

from __future__ import annotations

import asyncio

import msgspec

from dispatch_core.adapters.conformance.rig import Case, NotConforming, Rig, check, expect, later
from dispatch_core.adapters.contract import Log, Target
from dispatch_core.adapters.logs import written
from dispatch_core.plan import Secret, Spec
from dispatch_core.record import State

AWKWARD = (
    "",
    " leading and trailing ",
    "-dash",
    "--flag=value",
    "'single' \"double\" `back`",
    "$HOME ${HOME} $(id) \\ \\n %s %%",
    "two\nlines\n",
    "tab\tand\rreturn",
    "é ü 漢字 🚀",
    "a;b|c&d<e>f(g)*?[h]{i,j}~!#",
)
SECRET = "hunter2 'quoted' \"twice\" $HOME é\nsecond-line-of-it"  # noqa: S105 - bait


async def recited(case: Case, place: str) -> tuple[list[str], dict[str, str | None]]:
    """What the payload wrote, once it has."""
    async for _ in case.rig.patiently():
        told = await case.rig.recited(place)
        if told is not None:
            return told
    raise NotConforming("the payload that writes down what it got wrote nothing")


@check()
async def values_arrive_whole(rig: Rig) -> None:
    case = Case(rig)
    environment = {f"VALUE_{number}": value for number, value in enumerate(AWKWARD)}
    spec = rig.recital(case.uid, AWKWARD, tuple(environment))
    spec = msgspec.structs.replace(spec, environment={**spec.environment, **environment})
    target = await case.started(spec)
    await case.open(target)
    arguments, variables = await recited(case, case.uid)
    expect(arguments == list(AWKWARD), f"the arguments {AWKWARD} arrived as {arguments}")
    expect(variables == environment, f"the environment {environment} arrived as {variables}")
    await case.until(target, State.ENDED)


@check()
async def a_payload_knows_which_run_it_is(rig: Rig) -> None:
    case = Case(rig)
    names = ("KEY", "SUBMISSION", "ATTEMPT", "OBJECT", "RUN", "PREVIOUS_CAUSE")
    variables = tuple(f"DISPATCH_{name}" for name in names)
    target = await case.started(rig.recital(case.uid, (), variables), cause="preempted")
    await case.open(target)
    _, told = await recited(case, case.uid)
    object = target.name if told["DISPATCH_OBJECT"] == target.name else target.id  # where its id cannot be told inside
    wanted = (case.job.key, "1", "1", object, "1", "preempted")
    got = tuple(told[name] for name in variables)
    expect(got == wanted, f"the payload was told {got}, and should have been told {wanted}")
    await case.until(target, State.ENDED)


@check()
async def a_requeued_payload_knows_how_the_run_before_ended(rig: Rig) -> None:
    case = Case(rig)
    if not case.adapter.capabilities.requeues:
        return
    variables = ("DISPATCH_RUN", "DISPATCH_PREVIOUS_CAUSE")
    target = await case.started(rig.recital(case.uid, (), variables))
    for run, cause in ((target, ""), (later(target), "completed")):
        await case.open(run)
        await case.until(run, State.ENDED)
        _, told = await recited(case, case.uid)
        got = (told[variables[0]], told[variables[1]] or "")
        expect(got == (str(run.run), cause), f"run {run.run}, after {cause or 'nothing'!r}, was told {got}")
        if run is target:
            await case.adapter.requeue(run, await case.in_time())


@check()
async def a_secret_arrives_and_is_nowhere_else(rig: Rig) -> None:
    case = Case(rig)
    spec = rig.recital(case.uid, (), ("TOKEN",))
    spec = msgspec.structs.replace(spec, secret_environment={"TOKEN": Secret(source="variable", name="token")})
    target = await case.started(spec, secrets={"TOKEN": SECRET})
    await unseen(case)
    await case.open(target)
    _, told = await recited(case, case.uid)
    expect(told["TOKEN"] == SECRET, "the secret did not arrive whole")
    await case.until(target, State.ENDED)
    await unseen(case)
    if case.adapter.capabilities.requeues:
        await case.adapter.requeue(target, await case.in_time())
        await case.open(later(target))
        await case.until(target, State.ENDED)
        _, told = await recited(case, case.uid)
        expect(told == {"TOKEN": SECRET}, "the secret did not arrive in the second run")


async def unseen(case: Case) -> None:
    shown = repr(await case.find()) + repr(case.adapter) + repr(vars(case.adapter))
    for part in SECRET.split("\n"):
        expect(
            repr(part)[1:-1] not in shown and part not in shown, "a secret is in a listing, or in the adapter's repr"
        )
        places = await case.rig.leaks(part)
        expect(not places, f"a secret can be read in {places}")


async def log(case: Case, target: Target, *, last_lines: int | None = None, follow: bool = False) -> bytes:
    """What the log of a run is made of."""
    told: list[str] = []
    pieces = written(case.adapter, case.job, target, told.append, last_lines=last_lines, follow=follow, seconds=0.1)
    return b"".join([piece async for piece in pieces])


@check()
async def what_a_run_wrote_can_be_read(rig: Rig) -> None:
    case = Case(rig)
    target = await case.running()
    line = case.line.encode()
    for stream in (1, 2):
        piece = await case.adapter.read_log(target, stream, 0, 100_000)
        expect(piece.log is (Log.THERE if stream == 1 else piece.log), f"the log of a run that writes is {piece.log}")
        expect(piece.log is Log.SHARED or bool(piece.path), "it is not said where the log is")
        expect(len(piece.data) == piece.size, f"a log of {piece.size} bytes was read as {len(piece.data)}")
    whole = await case.adapter.read_log(target, 1, 0, 100_000)
    expect(line in whole.data, f"the log of a run that wrote a line has {whole.data!r}")
    part = await case.adapter.read_log(target, 1, 3, 5)
    expect((part.data, part.size) == (whole.data[3:8], whole.size), f"bytes 3 to 8 are {part.data!r}")
    after = await case.adapter.read_log(target, 1, whole.size, 10)
    expect((after.log, after.data) == (Log.THERE, b""), f"after its end there is {after.data!r}")
    expect((await case.adapter.read_log(target, 1, 0, 0)).size == whole.size, "its size cannot be asked for alone")
    expect(line in await log(case, target), "the log of a run that wrote a line lacks it")
    expect(await log(case, target, last_lines=1) == line + b"\n", "its last line is another")
    following = asyncio.create_task(log(case, target, follow=True))
    await asyncio.sleep(rig.quiet_seconds)
    expect(not following.done(), "a run that goes on is not followed any more")
    await rig.go(case.line)
    await case.until(target, State.ENDED)
    async with asyncio.timeout(rig.patience_seconds):
        expect(line in await following, "what a followed run wrote is lost")


@check()
async def a_run_that_has_not_begun_has_no_log_yet(rig: Rig) -> None:
    case = Case(rig)
    gated = await case.started(Spec(command=("true",)))
    piece = await case.adapter.read_log(gated, 1, 0, 100)
    expect(piece.log is Log.NOT_BEGUN and not piece.data, f"the log of a gated run is {piece.log}")
    expect(await log(case, gated) == b"", "a run that never began has a log")


@check()
async def the_logs_of_two_runs_of_an_object_are_apart(rig: Rig) -> None:
    case = Case(rig)
    if not case.adapter.capabilities.requeues:
        return
    first = await case.started(Spec(command=("sh", "-c", "echo run $DISPATCH_RUN")))
    for run in (first, later(first)):
        await case.open(run)
        await case.until(run, State.ENDED)
        if run is first:
            await case.adapter.requeue(run, await case.in_time())
            expect((await case.adapter.read_log(later(run), 1, 0, 9)).log is Log.NOT_BEGUN, "run 2 has a log already")
    for run in (first, later(first)):
        told = await log(case, run)
        expect(told.endswith(b"run %d\n" % run.run) and told.count(b"run ") == 1, f"run {run.run} wrote {told!r}")
    async with asyncio.timeout(rig.patience_seconds):
        expect(b"run 1\n" in await log(case, first, follow=True), "a run that was requeued since is followed for ever")
