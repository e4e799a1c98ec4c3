"""Records that cannot be made, and stored ones that are read back byte for byte."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dispatch_core.errors import UnreadableRecord
from dispatch_core.names import object_name, read_name
from dispatch_core.plan import Action, Plan, Spec
from dispatch_core.record import (
    FORMAT,
    Answer,
    Attempt,
    Call,
    Hold,
    Intent,
    Kind,
    Object,
    Outcome,
    Record,
    Reply,
    Result,
    Spent,
    State,
    Submission,
    decode,
    encode,
)
from tests.world import EPOCH

SAMPLES = sorted((Path(__file__).parent / "records").glob("*.json"))
NEW = Record(key="train", uid="0f3a9c21", scheduler="cluster", spec=Spec(command=("true",)), plan=Plan())
ATTEMPT = Attempt(number=1, committed=EPOCH, deadline=EPOCH)
FIRST = Submission(number=1, why="first", spec=NEW.spec, attempts=(ATTEMPT,))
OBJECT = Object(
    id="o1",
    name=object_name(NEW.uid, 1, 1),
    submission=1,
    attempt=1,
    first_seen=EPOCH,
    seen=EPOCH,
    run=1,
    state=State.RUNNING,
)
CALL = Call(kind=Kind.OPEN, object="o1", run=1, hold=0, committed=EPOCH, deadline=EPOCH)
INTENT = Intent(key="o1/1", do=Action.RESUBMIT, rule="r", cause=None, not_before=EPOCH)
OUTCOME = Outcome(result=Result.FAILED, cause=None, at=EPOCH, by="ann")
FOUR = tuple(replace(ATTEMPT, number=number) for number in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"key": ""}, "the key has 0 characters; 1 to 250 are allowed"),
        ({"key": "k" * 251}, "the key has 251 characters"),
        ({"uid": "Short"}, "the uid 'Short' is not 8 to 32 digits"),
        ({"format": 2}, "it has format 2; this version reads format 1"),
        ({"submissions": (replace(FIRST, number=2),)}, "submissions are not numbered"),
        ({"submissions": (replace(FIRST, attempts=FOUR[1:]),)}, "attempts of submission 1 are not numbered"),
        ({"submissions": (replace(FIRST, attempts=FOUR),)}, "submission 1 has more than 3 attempts"),
        ({"submissions": (replace(FIRST, canonical="o9"),)}, "is not one of its objects"),
        (
            {"submissions": (replace(FIRST, canonical="o1"),), "objects": (replace(OBJECT, foreign=True),)},
            "is not one of its objects",
        ),
        (
            {"submissions": (replace(FIRST, canonical="o1"),), "objects": (replace(OBJECT, submission=2),)},
            "is not one of its objects",
        ),
        (
            {"submissions": (replace(FIRST, canonical="o1"),), "objects": (replace(OBJECT, retired=True),)},
            "the canonical object of submission 1 is retired",
        ),
        ({"objects": (OBJECT, OBJECT)}, "an object is in it twice"),
        ({"calls": (CALL, replace(CALL, count=2))}, "a call is in it twice"),
        ({"budget": (Spent(key="o1/1", rule="a"), Spent(key="o1/1", rule="b"))}, "one end spent two units"),
        ({"intents": (INTENT, INTENT)}, "one end has two intents"),
        ({"intents": (replace(INTENT, do=Action.FAIL),)}, "neither resubmits nor requeues"),
        ({"settled": True}, "settled without an outcome"),
        ({"outcome": OUTCOME, "intents": (INTENT,)}, "an outcome and an intent"),
        ({"outcome": OUTCOME, "holds": (Hold(number=1, asked_by="ann", reason=""),)}, "an outcome and a hold"),
    ],
)
def test_a_broken_record_cannot_be_made(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(NEW, **fields)


@pytest.mark.promise("G5")
def test_late_attempts_are_not_among_the_three() -> None:
    late = replace(FOUR[0], reply=Reply(answer=Answer.LATE))
    assert replace(NEW, submissions=(replace(FIRST, attempts=(late, *FOUR[1:])),)).last is not None


@pytest.mark.promise("P3")
def test_a_record_says_what_is_in_it() -> None:
    record = replace(
        NEW,
        submissions=(replace(FIRST, attempts=FOUR[:2]),),
        objects=(OBJECT, replace(OBJECT, id="f1", foreign=True, submission=0)),
        calls=(CALL,),
        budget=(Spent(key="o1/1", rule="r"),),
        intents=(INTENT,),
    )
    assert record.names() == ("dispatch-0f3a9c21-1-1", "dispatch-0f3a9c21-1-2")
    assert record.of(1) == (OBJECT,)
    assert record.call(Kind.OPEN, "o1", 1) is CALL
    assert record.call(Kind.STOP, "o1", 1) is None
    assert (record.spent("o1/1"), record.spent("o1/2"), record.used("r")) == ("r", None, 1)
    assert (record.intent("o1/1"), record.intent("o1/2")) == (INTENT, None)
    assert NEW.last is None


@pytest.mark.case("T4")
@pytest.mark.parametrize(
    "name",
    ["", "train", "dispatch-short-1-1", "dispatch-0f3a9c21-0-1", "dispatch-0f3a9c21-1", "dispatch-0f3a9c21-1-1x"],
)
def test_a_mangled_name_is_nobodys(name: str) -> None:
    assert read_name(name) is None


def test_a_name_says_what_it_carries() -> None:
    assert read_name(object_name("0f3a9c21b7d4e865", 12, 3)) == ("0f3a9c21b7d4e865", 12, 3)


# --- stored ones


def test_there_are_samples_of_the_format() -> None:
    assert any(path.name.startswith(f"format-{FORMAT}-") for path in SAMPLES)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_stored_record_is_read_back_byte_for_byte(path: Path) -> None:
    """The samples were written by released versions and are never edited."""
    document = path.read_bytes().rstrip(b"\n")
    assert encode(decode(document)) == document


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"{", "cannot be read"),
        (b"{}", "missing required field"),
        (encode(NEW).replace(b'"format":1', b'"format":2'), "format 2; this version reads format 1"),
        (encode(NEW).replace(b'"format":1', b'"format":1,"colour":"red"'), "unknown field `colour`"),
        (encode(NEW).replace(b'"settled":false', b'"settled":true'), "settled without an outcome"),
        (encode(NEW).replace(b'"revision":0', b'"revision":"0"'), "Expected `int`, got `str`"),
    ],
)
def test_what_this_version_does_not_know_is_refused(document: bytes, text: str) -> None:
    with pytest.raises(UnreadableRecord, match=text) as refused:
        decode(document)
    assert "it was left as it is" in str(refused.value)
    assert isinstance(refused.value.__cause__, msgspec.DecodeError)
