"""The plugin that counts promises, run on small projects of its own."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests import promises

Project = Callable[..., pytest.RunResult]

GATE = "def may_open(canonical):\n    return canonical\n"
SHUT = """
    import pytest

    @pytest.mark.promise("G8")
    def test_shut():
        from dispatch_core import may_open

        assert not may_open(False)
"""
OPENS_ALWAYS = """The gate opens whatever is committed.
{red}
--- a/dispatch_core/__init__.py
+++ b/dispatch_core/__init__.py
@@ -1,2 +1,2 @@
 def may_open(canonical):
-    return canonical
+    return {returned}
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Runs pytest on one test file in a project that has the promises G8 and G9, G9 later, and the case T1."""
    monkeypatch.setattr(promises, "PROMISES", ("G8", "G9"))
    monkeypatch.setattr(promises, "CASES", ("T1",))
    monkeypatch.setattr(promises, "LATER", frozenset({"G9"}))
    for name in [name for name in sys.modules if name.partition(".")[0] == "dispatch_core"]:
        monkeypatch.delitem(sys.modules, name)  # the project's own room of that name is to be imported
    pytester.makeconftest("pytest_plugins = ['tests.promises']")
    pytester.mkpydir("dispatch_core").joinpath("__init__.py").write_text(GATE)
    pytester.path.joinpath("tests", "breaks").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(pytester.path)], check=True)

    def run(source: str, *options: str, breaks: dict[str, str]) -> pytest.RunResult:
        for number, patch in breaks.items():
            pytester.path.joinpath("tests", "breaks", f"{number}.patch").write_text(patch)
        pytester.makepyfile(test_gate=source)
        return pytester.runpytest_inprocess("-p", "no:asyncio", "-p", "no:cacheprovider", *options)

    return run


def break_of(returned: str, red: str = "") -> str:
    return OPENS_ALWAYS.format(returned=returned, red=red)


def test_rows_count_what_passed(project: Project) -> None:
    result = project(SHUT, "--promises", breaks={"G8": break_of("True")})
    result.stdout.fnmatch_lines(["G8 1 passed", "G9 0 later"])
    assert result.ret == pytest.ExitCode.OK


def test_later_number_that_is_shown_prints_its_count(project: Project) -> None:
    source = "import pytest\n@pytest.mark.promise('G8')\n@pytest.mark.promise('G9')\ndef test_both(): pass"
    result = project(source, "--promises", breaks={"G8": break_of("True")})
    result.stdout.fnmatch_lines(["G8 1 passed", "G9 1 passed"])


def test_missing_row_fails_the_run(project: Project) -> None:
    result = project("def test_nothing(): pass", "--promises", "--cases", breaks={"G8": break_of("True")})
    result.stdout.fnmatch_lines(["G8 0 missing", "G9 0 later", "T1 0 missing", "*1 passed*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_long_test_counts_only_when_it_runs(project: Project) -> None:
    source = "import pytest\n@pytest.mark.case('T1')\n@pytest.mark.long\ndef test_long(): pass\ndef test_quick(): pass"
    result = project(source, "--cases", "-m", "not long", "-W", "ignore", breaks={})
    result.stdout.fnmatch_lines(["T1 0 missing"])


def test_failed_and_skipped_are_counted_and_named(project: Project) -> None:
    source = """
        import pytest

        @pytest.mark.promise("G8")
        @pytest.mark.parametrize("n", range(4))
        def test_four(n):
            if n == 2:
                pytest.skip("not here")
            assert n != 3
    """
    result = project(source, "--promises", breaks={"G8": break_of("True")})
    result.stdout.fnmatch_lines(["G8 2 passed 1 failed 1 skipped: test_gate.py::test_four[[]2]"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_number_only_skipped_fails_the_run(project: Project) -> None:
    source = "import pytest\n@pytest.mark.case('T1')\ndef test_skipped(): pytest.skip('not here')"
    result = project(source, "--cases", breaks={})
    result.stdout.fnmatch_lines(["T1 0 passed 1 skipped: test_gate.py::test_skipped"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_promise_without_a_break_fails_the_run(project: Project) -> None:
    result = project(SHUT, "--promises", breaks={})
    result.stdout.fnmatch_lines(["G8 1 passed no break"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize("mark", ["promise('G11')", "promise('T1')", "case('T10')", "promise()", "case('T1', 'T1')"])
def test_unknown_number_is_a_collection_error(project: Project, mark: str) -> None:
    result = project(f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass", breaks={})
    result.stderr.fnmatch_lines([f"ERROR: test_gate.py::test_it: no {mark.partition('(')[0]} has the number *"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize("red", ["", "Red: test_gate.py::test_shut"])
def test_break_that_is_noticed_names_the_test(project: Project, red: str) -> None:
    result = project(SHUT, "--breaks", breaks={"G8": break_of("True", red)})
    result.stdout.fnmatch_lines(["G8 red: test_gate.py::test_shut", "*1 passed*"])
    assert result.ret == pytest.ExitCode.OK


RED_EITHER_WAY = SHUT.replace("assert not", "assert")


@pytest.mark.parametrize(
    ("source", "patch", "row"),
    [
        (SHUT, break_of("canonical  # the same"), "G8 GREEN (break not noticed)"),
        (SHUT, break_of("canonical\n+)"), "G8 breaks Python, not the promise: *"),
        (SHUT, break_of("True").replace("canonical)", "committed)"), "G8 does not apply: error: patch failed: *"),
        (SHUT, break_of("True").replace("dispatch_core", "tests"), "G8 breaks something else than the product"),
        (SHUT, break_of("True", "Red: test_other.py"), "G8 names a test that does not carry this promise: *"),
        (RED_EITHER_WAY, break_of("None"), "G8 no verdict, red without the break too: test_gate.py::test_shut"),
        ("def test_nothing(): pass", break_of("True"), "G8 no test carries this promise"),
        (SHUT, None, "G8 no break: G8.patch is missing"),
    ],
    ids=["green", "unreadable", "outdated", "elsewhere", "misnamed", "red-anyway", "untested", "missing"],
)
def test_break_that_shows_nothing_fails(project: Project, source: str, patch: str | None, row: str) -> None:
    result = project(source, "--breaks", breaks={"G8": patch} if patch else {})
    result.stdout.fnmatch_lines([row, "*1 failed*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_only_the_breaks_asked_for_are_run(project: Project) -> None:
    result = project(SHUT, "--breaks", "G8", breaks={"G8": break_of("True"), "G9": break_of("True")})
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("options", [("--breaks", "G11"), ("--breaks", "--promises")])
def test_breaks_refuses_what_it_cannot_do(project: Project, options: tuple[str, ...]) -> None:
    assert project(SHUT, *options, breaks={"G8": break_of("True")}).ret == pytest.ExitCode.USAGE_ERROR
