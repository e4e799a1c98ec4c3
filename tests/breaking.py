"""Breaks the code once for each promise, in a scratch copy, and watches which of the promise's tests turns red.

tests/breaks/G8.patch is a unified diff of a line or two against the three packages. Above the diff it says in words
what it breaks, and a line `Red: tests/test_next.py::test_gate` may name the test (or the file) to try first, which
saves the slow ones. A break counts only when the same test passes in an unbroken copy: a test that is red either way
shows nothing.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("dispatch_core", "airflow_provider", "prefect_collection")
LIMIT_SECONDS = 180
DRAIN_SECONDS = 30


class NotNoticed(Exception):
    """A break that turned no test red, or that could not be judged; says why."""


class Tree:
    """The project as git sees it, committed or not, copied once unbroken and once for each break."""

    def __init__(self, root: Path, scratch: Path) -> None:
        """Raises NotNoticed where a copy would import other packages than its own, so that no break could be seen."""
        listed = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        self.root = root
        self.scratch = scratch
        self.files = subprocess.check_output(listed, text=True).split("\0")
        self.whole = self.copy("whole")
        present = [name for name in PACKAGES if (self.whole / name).is_dir()]
        ask = "import importlib, sys; [print(importlib.import_module(name).__path__[0]) for name in sys.argv[1:]]"
        paths = run([sys.executable, "-c", ask, *present], self.whole).stdout.split()
        if paths != [str(self.whole / name) for name in present]:
            raise NotNoticed(f"a scratch copy imports other packages than its own: {paths}")

    def copy(self, name: str) -> Path:
        target = self.scratch / name
        for entry in self.files:
            if (self.root / entry).is_file():
                (target / entry).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.root / entry, target / entry, follow_symlinks=False)
        return target


def run(command: list[str], copy: Path) -> subprocess.CompletedProcess[str]:
    """Runs in a scratch copy, with its packages ahead of the installed ones and no bytecode to outlive a patch."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    env |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    with subprocess.Popen(
        command, cwd=copy, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as child:
        try:
            output, _ = child.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)  # lets pytest take its own servers and runners down
            try:
                output, _ = child.communicate(timeout=DRAIN_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                output, _ = child.communicate()
            output += f"\nstopped after {LIMIT_SECONDS} seconds"
    return subprocess.CompletedProcess(command, child.returncode, output)


def run_tests(which: str, copy: Path) -> subprocess.CompletedProcess[str]:
    options = ["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-n", "0"]
    return run([sys.executable, "-m", "pytest", *options, which], copy)


def apply_break(patch: Path, copy: Path) -> None:
    """Raises NotNoticed for a patch that is none of the product, no longer fits, or leaves no Python."""
    changed = re.findall(r"^\+\+\+ b/(\S+\.py)$", patch.read_text(), re.MULTILINE)
    if not changed or not all(name.startswith(PACKAGES) for name in changed):
        raise NotNoticed("breaks something else than the product")
    applied = run(["git", "apply", "--recount", str(patch)], copy)
    if applied.returncode:
        raise NotNoticed(f"does not apply: {applied.stdout.strip()}")
    for name in changed:
        try:
            compile((copy / name).read_text(), name, "exec")
        except SyntaxError as error:
            raise NotNoticed(f"breaks Python, not the promise: {error}") from None


def order(patch: Path, tests: list[str]) -> list[str]:
    """The tests named by the patch, then those that lie nearest to tests/: the engines' own are the slow ones."""
    named = tuple(re.findall(r"^Red: (\S.*)$", patch.read_text(), re.MULTILINE))
    if named and not any(test.startswith(named) for test in tests):
        raise NotNoticed(f"names a test that does not carry this promise: {named[0]}")
    return sorted(tests, key=lambda test: (not test.startswith(named), test.partition("::")[0].count("/")))


def judge(patch: Path, tests: list[str], tree: Tree) -> str:
    """The test that turned red.

    Raises NotNoticed, with the reason, for every break that shows nothing.
    """
    if not patch.exists():
        raise NotNoticed(f"no break: {patch.name} is missing")
    if not tests:
        raise NotNoticed("no test carries this promise")
    copy = tree.copy(patch.stem)
    apply_break(patch, copy)
    arguments = tree.scratch / f"{patch.stem}.txt"
    arguments.write_text("\n".join(order(patch, tests)))
    broken = run_tests(f"@{arguments}", copy)
    red: list[str] = re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", broken.stdout, re.MULTILINE)
    if broken.returncode == pytest.ExitCode.OK:
        raise NotNoticed("GREEN (break not noticed)")
    if not red:
        raise NotNoticed(f"no verdict, pytest ended with {broken.returncode}\n{broken.stdout[-2000:]}")
    unbroken = run_tests(red[0], tree.whole)
    if unbroken.returncode:
        raise NotNoticed(f"no verdict, red without the break too: {red[0]}\n{unbroken.stdout[-2000:]}")
    return red[0]


class Break(pytest.Item):
    """One break as pytest runs it: passes when a test of its promise turned red."""

    def __init__(
        self, *, patch: Path, tests: list[str], tree: Tree, pool: ThreadPoolExecutor, **inherited: Any
    ) -> None:
        super().__init__(name=patch.stem, path=patch, nodeid=f"tests/breaks/{patch.name}", **inherited)
        self.row = f"{self.name} not judged"
        self.judged = pool.submit(judge, patch, tests, tree)

    def runtest(self) -> None:
        try:
            self.row = f"{self.name} red: {self.judged.result()}"
        except NotNoticed as failure:
            self.row = f"{self.name} {str(failure).splitlines()[0]}"
            raise

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        return str(excinfo.value) if excinfo.errisinstance(NotNoticed) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"break {self.name}"
