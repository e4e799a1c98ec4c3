"""Counts the tests behind every numbered promise and case; with --breaks, shows that they notice.

A test carries `@pytest.mark.promise("G8")` or `@pytest.mark.case("T13")`. `--promises` and `--cases` select nothing:
the suite runs as it would, then one row is printed for each number, and a row with no test that passed fails the run,
as does a promise without its break. The numbers live here and nowhere else; LATER holds those whose room is not built
yet, and only shrinks.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.breaking import Break, NotNoticed, Tree

PROMISES = tuple(
    "P1 P2 P3 P4 C1 C2 C3 C4 C5 G1 G2 G3 G4 G5 G6 G7 G8 G9 G10 X1 X2 X3 X4 L1 L2 L3 L4 L5 S1 S2 O1 O2 O3 R1 R2 R3"
    " V1 V2 A1 A2 A3 A4 A5 F1".split()
)
CASES = tuple(
    "T1 T2 T3 T4 T5 T6 T7 T8 T9 T11 T12 T13 T14 T15 T16 T17 T18 T20 T21 T23 T25 T26 T27 T28 T30 T32 T33 T34 T35 T38 T39"
    " T41 T43 T45 T47 T49 T50 T52 T53 T54 T55".split()
)
LATER: frozenset[str] = frozenset()

SHOWS = "shows"
WORST_LAST = ("passed", "skipped", "failed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("promises")
    group.addoption("--promises", action="store_true", help="after the run, one row for each numbered promise")
    group.addoption("--cases", action="store_true", help="after the run, one row for each numbered case")
    group.addoption(
        "--breaks",
        nargs="?",
        const="",
        metavar="ID,...",
        help="run no test here: apply each promise's break to a copy, and show which of its tests turns red",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Breaks run their own tests side by side, in copies: more of this program would do the same over again."""
    if config.option.breaks is not None:
        config.option.numprocesses = 0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(id): shows that the numbered promise holds")
    config.addinivalue_line("markers", "case(id): shows the numbered case from the field")
    config.pluginmanager.register(Rows(config))


def numbers(item: pytest.Item) -> Iterator[str]:
    """The promises and cases that one test carries; a number that does not exist ends the collection."""
    for kind, known in (("promise", PROMISES), ("case", CASES)):
        for mark in item.iter_markers(kind):
            if mark.kwargs or len(mark.args) != 1 or mark.args[0] not in known:
                wrong = ", ".join(repr(argument) for argument in (*mark.args, *mark.kwargs.values()))
                raise pytest.UsageError(f"{item.nodeid}: no {kind} has the number ({wrong})")
            yield mark.args[0]


class Rows:
    """What one run showed, number by number."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.folder = config.rootpath / "tests" / "breaks"
        self.tests: dict[str, list[pytest.Item]] = {}
        self.ran: dict[str, list[str]] = {}
        self.outcomes: dict[str, str] = {}
        self.breaks: list[Break] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> Iterator[None]:
        carried = {item: set(numbers(item)) for item in items}  # also of the tests that -m is about to deselect
        yield
        for item in items:
            for number in carried[item]:
                self.tests.setdefault(number, []).append(item)
                item.user_properties.append((SHOWS, number))  # travels with the report, from another process too
        if self.config.option.breaks is not None:
            self.breaks = self.make_breaks(session)
            items[:] = self.breaks

    def make_breaks(self, session: pytest.Session) -> list[Break]:
        """One item for each break asked for; all of them are already running when the first is waited for."""
        if self.config.option.promises or self.config.option.cases:
            raise pytest.UsageError("--breaks runs no test of its own, so --promises and --cases would count none")
        kept = {patch.stem for patch in self.folder.glob("*.patch")}
        asked = set(filter(None, self.config.option.breaks.split(",")))
        if unknown := sorted((kept | asked) - set(PROMISES)):
            raise pytest.UsageError(f"no promise has the number {', '.join(unknown)}")
        wanted = asked or kept | (set(PROMISES) - LATER)
        scratch = Path(tempfile.mkdtemp(prefix="dispatch-breaks-"))
        self.config.add_cleanup(lambda: shutil.rmtree(scratch))
        pool = ThreadPoolExecutor(os.cpu_count())
        self.config.add_cleanup(lambda: pool.shutdown(cancel_futures=True))  # cleanups run last in, first out
        try:
            tree = Tree(self.config.rootpath, scratch)
        except NotNoticed as failure:
            raise pytest.UsageError(str(failure)) from None
        return [
            Break.from_parent(
                session,
                patch=self.folder / f"{number}.patch",
                tests=[item.nodeid for item in self.tests.get(number, ())],
                tree=tree,
                pool=pool,
            )
            for number in PROMISES
            if number in wanted
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self.outcomes.get(report.nodeid, "passed")
        self.outcomes[report.nodeid] = max(before, report.outcome, key=WORST_LAST.index)
        for name, number in report.user_properties:
            if name == SHOWS and report.nodeid not in self.ran.setdefault(str(number), []):
                self.ran[str(number)].append(report.nodeid)

    def row(self, number: str) -> tuple[str, bool]:
        """The line for one number, and whether the run may pass with it."""
        ran = {node: self.outcomes[node] for node in self.ran.get(number, ())}
        count = Counter(ran.values())
        fine = count["passed"] > 0 and not count["failed"]
        text = f"{number} {count['passed']} passed"
        if not ran:
            text = f"{number} 0 {'later' if number in LATER else 'missing'}"
        if count["failed"]:
            text += f" {count['failed']} failed"
        if count["skipped"]:
            text += f" {count['skipped']} skipped: {' '.join(node for node in ran if ran[node] == 'skipped')}"
        if number in PROMISES and number not in LATER and not (self.folder / f"{number}.patch").exists():
            text, fine = f"{text} no break", False
        return text, fine or number in LATER

    def rows(self) -> list[tuple[str, bool]]:
        asked = [*(PROMISES if self.config.option.promises else ()), *(CASES if self.config.option.cases else ())]
        return [self.row(number) for number in asked]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        counts_here = not hasattr(self.config, "workerinput")  # a worker of pytest-xdist sees only some of the tests
        if counts_here and exitstatus == pytest.ExitCode.OK and not all(fine for _, fine in self.rows()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        lines = [*(text for text, _ in self.rows()), *(item.row for item in self.breaks)]
        if lines:
            terminalreporter.section("promises and cases")
            for line in lines:
                terminalreporter.write_line(line)
