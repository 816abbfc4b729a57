"""The simulation finds planted bugs. How soon it finds each of them is in docs/internals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.model.planted import HUNTS
from tests.sim.loads import GROUPS, HOLDS, RECORDS, TRANSACTIONS
from tests.sim.seed_search import Settings, run_one, shrunk
from tests.sim.story_hunt import STORIES, find_in_story
from tests.sim.unit_hunt import UNIT_TESTS, find_in_unit_test
from tidemill.testing.mutants import MUTANTS, MutantNotPlantable

HUNT = ("-m", "tests.support.interpreted", "tests.sim.mutant_hunt", "--seeds-max", "20")
ROOT = Path(__file__).parents[2]
RESTARTS = "crash,restart_cleanly,expiry"
KNOWN = [
    (RECORDS, "", "ack at once", 3),
    (RECORDS, "", "ack before followers have it", 0),
    (RECORDS, "", "skip unknown member", 1),
    (RECORDS, "", "mark from the proposed isr only", 13),
    (RECORDS, "", "readers see beyond the mark", 3),
    (RECORDS, "", "divergence not checked", 3),
    (RECORDS, "", "elect outside the isr", 2),
    (RECORDS, "", "cut takes committed records along", 2),
    (RECORDS, "", "sequence not checked", 0),
    (RECORDS, "return_cut_off", "note on re-read", 0),
    (RECORDS, "failing_disk", "failed sync counts", 33),
    (RECORDS, "pause,stale_reads", "lease ignored", 9),
    (RECORDS, "crash,late_watches,stale_reads", "end told before it is known", 411),
    (RECORDS, "recreate_topic,crash", "topic by name", 36),
    (TRANSACTIONS, RESTARTS, "markers lost on reload", 2),
    (TRANSACTIONS, "", "stable offset before the marker", 0),
    (TRANSACTIONS, RESTARTS, "open transaction expires", 0),
    (TRANSACTIONS, "", "end of an old epoch", 0),
    (TRANSACTIONS, "", "offsets before the commit", 0),
    (TRANSACTIONS, RESTARTS, "transaction not verified", 0),
    (TRANSACTIONS, "late_watches,restart_cleanly,drain", "complete before the markers", 2),
    (HOLDS, "", "veiled batch served raw", 0),
    (HOLDS, "", "client's ticket counts", 0),
    (HOLDS, "", "due rounded", 1),
    (HOLDS, "", "due decided at replay", 0),
    (HOLDS, "", "closed set forgotten at takeover", 0),
    (HOLDS, "", "carried copy ignored", 0),
    (HOLDS, "", "steady is wall", 0),
    (HOLDS, "", "clock ahead believed at once", 0),
    (HOLDS, "", "clock back delivers at once", 0),
    (HOLDS, "", "book not asked again", 2),
    (HOLDS, "", "cut ignored by the book", 2),
    (HOLDS, "", "retention ignores the floor", 0),
    (HOLDS, "", "follower ignores the floor", 0),
    (HOLDS, "", "taken rows not captured", 0),
    (HOLDS, "", "hold of an open transaction released", 0),
    (HOLDS, "", "aborted hold released", 0),
    (HOLDS, "", "marker decides for every producer", 0),
    (HOLDS, "", "undecided holds forgotten at takeover", 0),
    (HOLDS, "", "markers forgotten at takeover", 1),
    (HOLDS, "", "undecided holds not restored", 5),
    (HOLDS, "", "floor ignores open transactions", 9),
    (HOLDS, "", "aborted list with veiled entries", 0),
    (GROUPS, "", "old generation may commit", 2),
    (GROUPS, "", "partition given before it was revoked", 0),
    (GROUPS, "", "revocation not waited for", 1),
    (GROUPS, "", "owners forgotten at takeover", 5),
    (GROUPS, "", "commit acknowledged before it is replicated", 14),
    (GROUPS, "", "group epoch not stored", 0),
    (GROUPS, "", "loaded up to the mark only", 5),
    (GROUPS, "", "no sessions after takeover", 2),
]
"""Kinds of faults, or those that seeds draw, and a seed that finds the bug: the hunt begins there,
and goes on if that run has changed."""
ELSEWHERE = {
    "no skip batch": "tests/sim/test_views.py",
    "unknown matches": "tests/sim/test_views.py",
    "jump over matches": "tests/sim/test_views.py",
    "floor before durable": "tests/crash/test_hold_states.py",
    "snapshot of another log used": "tests/crash/test_hold_states.py",
    "aborted index not cut": "tests/crash/test_transaction_mutants.py",
    "vouched by arrival": "tests/model/test_vouching_model.py",
}
"""Found by other tests, which plant them too."""
COUNTED_BY_HAND = {
    "count a follower outside the isr",
    "follower claims to have flushed",
    "mark moves below min isr",
    "move ends before the copy does",
    "new leader not silent",
    "no epoch bump",
    "no epoch bump on removal",
    "no lease at end offsets",
    "nobody need vouch",
    "progress claims what was not flushed",
}
"""Seeds find them, as docs/internals/simulation.md says; the tests do not repeat it."""


@pytest.mark.slow
@pytest.mark.parametrize(("load", "kinds", "name", "seed"), KNOWN)
def test_a_planted_bug_is_found(load, kinds, name, seed):
    """In a process of its own, which runs the sources: compiled code cannot be changed."""
    hunted = subprocess.run(
        [
            *(sys.executable, *HUNT),
            *("--load", load, "--kinds", kinds, "--first", str(seed), "--only", name),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert hunted.returncode == 0, hunted.stderr[-2000:]
    line = hunted.stdout.splitlines()[-1]
    assert line.startswith(f"| {name} | ")
    assert f"| {name} | not in " not in line


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STORIES))
def test_a_story_finds_a_planted_bug(name):
    assert find_in_story(name).startswith("AssertionError")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(UNIT_TESTS))
def test_a_test_of_one_part_finds_a_planted_bug(name):
    assert "1 failed" in find_in_unit_test(name)


def test_every_planted_bug_is_found_by_something():
    by_seeds = {name for _, _, name, _ in KNOWN}
    found = {*by_seeds, *STORIES, *HUNTS, *UNIT_TESTS, *ELSEWHERE}
    assert found | COUNTED_BY_HAND == set(MUTANTS)
    assert not found & COUNTED_BY_HAND


@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_planted_bug_is_gone_afterwards(name):
    mutant = MUTANTS[name]
    before = _found(mutant.place)
    if not mutant.is_plantable:
        with pytest.raises(MutantNotPlantable), mutant.planted():
            pass
        return
    with mutant.planted():
        assert _found(mutant.place) is not before
    assert _found(mutant.place) is before


@pytest.mark.slow
def test_a_failing_seed_is_made_smaller():
    mutant = MUTANTS["elect outside the isr"]
    with mutant.planted():
        broken = next(one for one in map(Settings, range(2, 40)) if run_one(one).error)
        small = shrunk(broken)
    assert small.error
    assert small.settings.faults <= broken.faults
    assert small.settings.operations <= broken.operations
    assert f"--seeds {broken.seed} " in small.settings.command
    assert not run_one(small.settings).error


def _found(place: str) -> object:
    module, _, path = place.partition(":")
    owner: object = __import__(module, fromlist=["_"])
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return vars(owner)[name]
