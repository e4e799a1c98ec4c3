"""Every history in `tests/histories` leads to the steps that it says; `pytest --rewrite` writes them anew."""

from pathlib import Path

import pytest

from tests.promises import PROMISES
from tests.telling import retold, shows

FOLDER = Path(__file__).parent / "histories"


def marked(path: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.promise(number) if number in PROMISES else pytest.mark.case(number) for number in shows(path)]


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=marked(path)) for path in sorted(FOLDER.glob("*.txt"))]
)
def test_history(path: Path, request: pytest.FixtureRequest) -> None:
    told = retold(path)
    if request.config.getoption("--rewrite"):
        path.write_text(told)
    assert "LAW BROKEN" not in told
    assert "IMPOSSIBLE" not in told
    assert told == path.read_text()
