"""Every history in `tests/histories` leads to the steps that it says; `pytest --rewrite` writes them anew."""

import re
from pathlib import Path

import pytest

from dispatch_core.guards import GUARDS
from tests.promises import PROMISES
from tests.telling import Teller, retold, shows
from tests.world import Impossible

FOLDER = Path(__file__).parent / "histories"
ROOMS = Path(__file__).parents[1] / "dispatch_core"


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


def test_every_history_that_a_guard_names_is_told() -> None:
    named = {name for room in ROOMS.rglob("*.py") for name in re.findall(r"# history: (\w+)", room.read_text())}
    named |= {guard.history for guard in GUARDS.values()}
    assert named
    assert {name for name in named if not (FOLDER / f"{name}.txt").exists()} == set()


BEGUN = ["job train.sh", "a passes", "a passes, nothing arrives"]


@pytest.mark.parametrize(
    ("story", "refused", "why"),
    [
        ([], "a passes", "a history begins with a job"),
        (["job train.sh"], "a sends", "it may send nothing"),
        (["job train.sh"], "a lists", "a listing begins after its read"),
        (["job train.sh", "a reads", "a lists"], "a lists", "and once"),
        (["job train.sh"], "a's start 1.1 lands", "was never sent by a"),
        (["job train.sh"], "o1 runs", "there is no o1"),
        (["job train.sh", "a passes"], "o1 runs", "is gated: it cannot run"),
        (["job train.sh", "a passes"], "o1 ends exit 1", "is gated: it cannot end by itself"),
        (["job train.sh", "a passes"], "o1 is purged", "only what has ended is purged"),
        (["job train.sh", "a passes"], "o1 reruns", "it has no run to repeat"),
        (["job train.sh", "a passes"], "a sends", "has sent what its decision allowed"),
        ([*BEGUN, "time +31s"], "a's open o1 lands", "has expired: it can no longer land"),
        ([*BEGUN], "somebody takes the id of o1", "is not lost"),
        ([*BEGUN], "time -3s", "no sentence of a history"),
        (["job train.sh", "a reads", "a lists", "a decides", "ann cancels", "a reads"], "a commits", "decided nothing"),
    ],
)
def test_impossible_worlds_are_refused(story: list[str], refused: str, why: str) -> None:
    teller = Teller()
    for sentence in story:
        teller.tell(sentence, [])
    with pytest.raises(Impossible, match=why):
        teller.tell(refused, [])


def test_an_object_that_no_attempt_made_is_impossible() -> None:
    teller = Teller()
    for sentence in ("job train.sh", "a passes", "b reads"):
        teller.tell(sentence, [])
    teller.world.scheduler.make("dispatch-0f3a9c21-4-1")
    with pytest.raises(Impossible, match="made by no attempt that was ever committed"):
        teller.tell("b lists", [])
