"""Profiles: one history in four is drawn around troubles that belong together, where its faults are allowed."""

from collections import Counter

import pytest

from dispatch_core.plan import Plan, Spec, problems
from dispatch_core.simulator.campaign import run_seed
from dispatch_core.simulator.faults import Fault
from dispatch_core.simulator.history import Asked
from dispatch_core.simulator.profiles import PLAIN, PROFILES, SHARE, Profile, draw_profile
from dispatch_core.simulator.tape import Tape

EVERY = pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name.replace(" ", "_"))


def profile_of(seed: int, *without: Fault) -> Profile:
    return draw_profile(Tape(seed).branch("profile"), tuple(fault for fault in Fault if fault not in without))


def seed_of(profile: Profile) -> int:
    return next(seed for seed in range(1000) if profile_of(seed) is profile)


def test_most_histories_are_plain() -> None:
    drawn = Counter(profile_of(seed).name for seed in range(4000))
    assert set(drawn) == {PLAIN.name, *(profile.name for profile in PROFILES)}
    assert drawn[PLAIN.name] == pytest.approx(4000 * (1 - 1 / SHARE), rel=0.05)


@EVERY
def test_a_person_may_write_its_plan(profile: Profile) -> None:
    assert problems(Spec(command=("train.sh",)), profile.planned(Plan())) == []


@EVERY
def test_it_needs_all_its_faults(profile: Profile) -> None:
    seed = seed_of(profile)
    assert all(profile_of(seed, fault) is PLAIN for fault in profile.faults)


@EVERY
def test_its_history_holds_and_its_faults_are_muted(profile: Profile) -> None:
    seed = seed_of(profile)
    assert run_seed(seed, Asked()).violations == []
    told = run_seed(seed, Asked(muted=profile.faults))
    assert told.violations == []
    assert not profile.faults & told.faults.keys()


def test_a_choice_that_is_taken_back_leaves_it_plain() -> None:
    tape = Tape(seed_of(PROFILES[0]), frozenset({("profile", 1)}))
    assert draw_profile(tape.branch("profile"), tuple(Fault)) is PLAIN
