"""The house rules that no other tool holds: sizes, words, names of rooms, and a layer for each."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("dispatch_core", "airflow_provider", "prefect_collection")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

LONGEST = 400
LONGER_FOR_A_REASON: dict[str, str] = {}

# One word for one thing; these have another word here, or none.
NOT_USED = [
    *("task", "execution", "state_machine", "orphan", "zombie", "lock", "version", "kill", "sync", "process"),
    *("handle", "reconcile"),
]
# Names that a library demands, each with the library.
DEMANDED = {
    "__version__": "Python's own name for it",
    "create_task": "asyncio's event loop",
    "process_bind_param": "SQLAlchemy's TypeDecorator",
    "process_result_value": "the same",
}

NO_ROOMS = {"utils", "util", "helpers", "common", "types", "constants", "base", "misc"}


def name_of(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def words(identifier: str) -> str:
    """An identifier as words in lower case between underscores: `lockFile` and `LOCK_FILE` are `_lock_file_`."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", identifier)
    return f"_{apart.strip('_').lower()}_"


def not_used(identifier: str) -> list[str]:
    return [word for word in NOT_USED if re.search(rf"_{word}(s|es)?_", words(identifier))]


def chosen_names(tree: ast.AST) -> Iterator[str]:
    """The names that a module gives itself; what it calls elsewhere has the name it has there."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_module_holds_one_idea(module: Path) -> None:
    assert module.stem not in NO_ROOMS, "a function without a home belongs to its caller"
    lines = len(module.read_text().splitlines())
    assert lines <= LONGEST or name_of(module) in LONGER_FOR_A_REASON, f"{lines} lines: two ideas, or a reason?"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_module_says_what_it_is_for(module: Path) -> None:
    text = module.read_text()
    assert ast.get_docstring(ast.parse(text)), "no module docstring"
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)


@pytest.mark.parametrize(
    "module", [path for path in MODULES if path.is_relative_to(ROOT / "dispatch_core")], ids=name_of
)
def test_one_word_for_one_thing(module: Path) -> None:
    chosen = {module.stem, *chosen_names(ast.parse(module.read_text()))} - DEMANDED.keys()
    assert {name: not_used(name) for name in chosen if not_used(name)} == {}


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("lock_file", ["lock"]),
        ("LockFile", ["lock"]),
        ("StateMachine", ["state_machine"]),
        ("_tasks", ["task"]),
        ("processes", ["process"]),
        ("clock", []),
        ("fsync", []),
        ("subprocess", []),
        ("state", []),
        ("multiprocessing", []),
        ("handler", []),
    ],
)
def test_words_are_told_apart(identifier: str, expected: list[str]) -> None:
    assert not_used(identifier) == expected


def test_only_chosen_names_are_judged() -> None:
    tree = ast.parse("import os as system\nasync def stop(pid): self.done = await asyncio.create_task(os.kill(pid))")
    assert set(chosen_names(tree)) == {"system", "stop", "pid", "done"}


def test_every_room_has_a_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    house = next(contract for contract in contracts if contract.get("containers") == ["dispatch_core"])
    layers = {name for layer in house["layers"] for name in re.findall(r"\w+", layer)}
    rooms = {path.stem for path in (ROOT / "dispatch_core").glob("*.py")}
    rooms |= {path.parent.name for path in (ROOT / "dispatch_core").glob("*/__init__.py")}
    assert rooms - {"__init__"} <= layers
    assert house["exhaustive"]


def test_every_folder_of_tests_is_a_package() -> None:
    """Else two test files of the same name collide, and tests/airflow would be imported as airflow."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
