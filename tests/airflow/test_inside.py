"""The provider's own tests, run in Airflow's environment: one test here for each function of `inside`, with its marks.

Those that were selected run once, together, when the first of them is asked for.
"""

import ast
import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_core.environments import Environment, outside

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INSIDE_SECONDS = 600

Results = dict[tuple[str, str], tuple[list[str], list[str]]]
"""File and function: what failed of it and what was skipped, nothing where all its cases passed."""


def functions() -> Iterator[pytest.param]:
    """The test functions of `inside`, as parameters that carry the marks of their promises and cases."""
    for path in sorted((HERE / "inside").glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield pytest.param(path.stem, node.name, marks=list(marks(node)), id=f"{path.stem}-{node.name}")


def marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[pytest.MarkDecorator]:
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr="promise" | "case" as kind), args=[ast.Constant(value=str(number))]):
                yield getattr(pytest.mark, kind)(number)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where all that is temporary goes: PostgreSQL refuses root, and another user has no way into pytest's folders."""
    made = Path(tempfile.mkdtemp(prefix="dispatch-inside-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, engine: Environment, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    folder = tmp_path_factory.mktemp("inside")
    selected = [item for item in request.session.items if getattr(item, "originalname", "") == "test_inside"]
    chosen = [item.callspec.params for item in selected if isinstance(item, pytest.Function)]
    tests = [f"{HERE / 'inside' / one['file']}.py::{one['function']}" for one in chosen]
    told, report = folder / "told", folder / "report.xml"
    together = ("-n", "3", "--dist", "loadfile")  # they wait more than they work
    command = [str(engine.python), "-m", "pytest", "-q", *together, "-p", "no:cacheprovider", f"--junitxml={report}"]
    with told.open("w") as out:
        ran = subprocess.run(
            [*command, "--tb=short", *tests],
            cwd=ROOT,
            env={**outside(), "TMPDIR": str(place)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=INSIDE_SECONDS,
            check=False,
        )
    assert report.exists(), f"pytest ended with {ran.returncode} in Airflow's environment:\n{told.read_text()}"
    found: Results = defaultdict(lambda: ([], []))
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        failed, skipped = found[case.get("classname", "").split(".")[-1], case.get("name", "").partition("[")[0]]
        failed += [f"{case.get('name')}: {part.text}" for part in case if part.tag in ("failure", "error")]
        skipped += [f"{case.get('name')}: {part.get('message')}" for part in case if part.tag == "skipped"]
    return found


@pytest.mark.parametrize(("file", "function"), list(functions()))
def test_inside(results: Results, file: str, function: str) -> None:
    assert (file, function) in results, "it was not run"
    failed, skipped = results[file, function]
    if failed:
        pytest.fail(os.linesep.join(failed), pytrace=False)
    if skipped:
        pytest.skip(os.linesep.join(skipped))
