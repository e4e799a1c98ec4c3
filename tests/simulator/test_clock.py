"""Virtual time: the order of what is due, actors that stand still, and asyncio as on a real loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dispatch_core.simulator.clock import Actor, Clock


def clock_of() -> Clock:
    return Clock()  # type: ignore[abstract]  # what it lacks, sockets and signals, nobody here uses


def passes(clock: Clock, limit: float = 1000.0) -> None:
    clock.run_until(lambda: False, limit)


def ran(work: Callable[[Clock], Awaitable[Any]]) -> tuple[Any, float]:
    """What some work returned, and when it was done."""
    clock = clock_of()

    async def run() -> Any:
        return await work(clock), clock.time()

    running = clock.begin(Actor("a"), run())
    passes(clock)
    return running.result()  # type: ignore[no-any-return]


def test_what_is_due_at_one_time_runs_in_the_order_of_its_scheduling() -> None:
    clock, seen = clock_of(), []
    for when, what in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        clock.at(when, seen.append, what)
    passes(clock)
    assert seen == ["a", "b", "c", "d"]


def test_what_is_ready_runs_before_time_passes() -> None:
    clock, seen = clock_of(), []
    clock.at(0.0, seen.append, "timer")
    clock.call_soon(seen.append, "soon")
    passes(clock)
    assert seen == ["soon", "timer"]


def test_what_is_cancelled_does_not_run() -> None:
    clock, seen = clock_of(), []
    clock.at(1.0, seen.append, "a").cancel()
    passes(clock)
    assert seen == []


def test_nothing_runs_beyond_the_limit() -> None:
    clock, seen = clock_of(), []
    clock.at(5.0, seen.append, "at the limit")
    clock.at(5.1, seen.append, "beyond it")
    passes(clock, 5.0)
    assert (seen, clock.time()) == (["at the limit"], 5.0)
    passes(clock, 6.0)
    assert seen == ["at the limit", "beyond it"]


def test_it_stops_when_it_is_over() -> None:
    clock, seen = clock_of(), []
    for when in (1.0, 2.0, 3.0):
        clock.at(when, seen.append, when)
    clock.run_until(lambda: len(seen) == 2, 10.0)
    assert (seen, clock.time()) == ([1.0, 2.0], 2.0)


# --- actors


def test_what_a_paused_actor_missed_happens_in_order_when_it_goes_on() -> None:
    clock, seen = clock_of(), []
    actor = Actor("a")

    async def works() -> None:
        for number in range(3):
            await asyncio.sleep(1.0)
            seen.append((number, clock.time()))

    clock.begin(actor, works())
    clock.at(0.5, clock.pause, actor, 10.0)
    for when in (3.0, 2.0):
        clock.at(when, lambda when=when: seen.append((f"due at {when:g}", clock.time())), actor=actor)
    clock.at(4.0, lambda: seen.append(("the world", clock.time())))
    passes(clock)
    assert seen == [
        ("the world", 4.0),
        ("due at 2", 10.5),
        ("due at 3", 10.5),
        (0, 10.5),
        (1, 11.5),
        (2, 12.5),
    ]


def test_a_longer_pause_is_not_ended_by_a_shorter_one() -> None:
    clock, seen = clock_of(), []
    actor = Actor("a")
    clock.pause(actor, 10.0)
    clock.pause(actor, 2.0)
    clock.at(1.0, lambda: seen.append(clock.time()), actor=actor)
    passes(clock)
    assert seen == [10.0]


def test_a_paused_actor_may_be_let_go_on() -> None:
    clock, seen = clock_of(), []
    actor = Actor("a")
    clock.pause(actor, 10.0)
    clock.at(1.0, lambda: seen.append(clock.time()), actor=actor)
    clock.at(3.0, clock.resume, actor)
    passes(clock)
    assert seen == [3.0]


def test_what_an_actor_schedules_is_its_own() -> None:
    """Also from a task that it began, and from a timer of that task."""
    clock, seen = clock_of(), []
    actor = Actor("a")

    async def inner() -> None:
        await asyncio.sleep(1.0)
        seen.append(clock.acting)

    async def works() -> None:
        await asyncio.ensure_future(inner())
        seen.append(clock.acting)

    clock.begin(actor, works())
    passes(clock)
    assert seen == [actor, actor]
    assert clock.acting is None


# --- asyncio


async def sleeps(seconds: float, value: str = "") -> str:
    await asyncio.sleep(seconds)
    return value


def test_sleep_takes_its_time_and_no_more() -> None:
    assert ran(lambda clock: sleeps(300.0, "done")) == ("done", 300.0)


def test_a_timeout_ends_what_it_is_around() -> None:
    async def works(clock: Clock) -> str:
        try:
            async with asyncio.timeout(5.0):
                await asyncio.sleep(10.0)
        except TimeoutError:
            return "too late"
        return "in time"

    assert ran(works) == ("too late", 5.0)


def test_a_timeout_leaves_alone_what_is_in_time() -> None:
    async def works(clock: Clock) -> str:
        async with asyncio.timeout(5.0):
            return await sleeps(2.0, "in time")

    assert ran(works) == ("in time", 2.0)


def test_wait_gives_up_after_its_time() -> None:
    async def works(clock: Clock) -> tuple[int, int]:
        tasks = {asyncio.ensure_future(sleeps(seconds)) for seconds in (1.0, 9.0)}
        done, pending = await asyncio.wait(tasks, timeout=3.0)
        return len(done), len(pending)

    assert ran(works) == ((1, 1), 3.0)


def test_gather_waits_for_all_in_their_order() -> None:
    async def works(clock: Clock) -> list[str]:
        return await asyncio.gather(sleeps(3.0, "a"), sleeps(1.0, "b"))

    assert ran(works) == (["a", "b"], 3.0)


def test_a_shield_lets_its_work_go_on() -> None:
    seen: list[str] = []

    async def inner() -> None:
        await asyncio.sleep(4.0)
        seen.append("done")

    async def works(clock: Clock) -> None:
        work = asyncio.ensure_future(inner())
        try:
            async with asyncio.timeout(1.0):
                await asyncio.shield(work)
        except TimeoutError:
            seen.append("given up")
        await work

    assert ran(works) == (None, 4.0)
    assert seen == ["given up", "done"]


def test_cancellation_reaches_the_innermost_await() -> None:
    clock, seen = clock_of(), []

    async def works() -> None:
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            seen.append(clock.time())
            raise

    running = clock.begin(Actor("a"), works())
    clock.at(2.0, running.cancel)
    passes(clock)
    assert running.cancelled()
    assert seen == [2.0]


def test_the_running_loop_is_this_one() -> None:
    async def works(clock: Clock) -> bool:
        return asyncio.get_running_loop() is clock

    assert ran(works) == (True, 0.0)


async def test_a_real_loop_outside_is_restored() -> None:
    outside = asyncio.get_running_loop()
    assert ran(lambda clock: sleeps(5.0, "done")) == ("done", 5.0)
    assert asyncio.get_running_loop() is outside
    await asyncio.sleep(0)


def test_no_loop_is_left_running() -> None:
    ran(lambda clock: sleeps(1.0))
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_what_breaks_in_the_world_ends_the_run_and_restores_the_loop() -> None:
    clock = clock_of()
    clock.at(1.0, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        passes(clock)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_what_nobody_caught_is_kept() -> None:
    clock = clock_of()

    async def works() -> None:
        raise KeyError("o1")

    def begin() -> None:
        clock.begin(Actor("a"), works())

    begin()
    passes(clock)
    assert [type(error) for error in clock.broken] == [KeyError]
