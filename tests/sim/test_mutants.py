"""The simulation finds planted bugs. How soon it finds each of them is in docs/internals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.seed_search import Settings, run_one, shrunk
from tidemill.testing.mutants import MUTANTS, MutantNotPlantable

HUNT = ("-m", "tests.support.interpreted", "tests.sim.mutant_hunt", "--seeds-max", "20", "--only")
ROOT = Path(__file__).parents[2]
QUICK = [
    "ack at once",
    "ack before followers have it",
    "skip unknown member",
    "mark from the proposed isr only",
    "readers see beyond the mark",
    "divergence not checked",
    "elect outside the isr",
    "sequence not checked",
]
"""Found within a few seeds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name):
    """In a process of its own, which runs the sources: compiled code cannot be changed."""
    hunted = subprocess.run(
        [sys.executable, *HUNT, name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert hunted.returncode == 0, hunted.stderr[-2000:]
    line = hunted.stdout.splitlines()[-1]
    assert line.startswith(f"| {name} | ")
    assert "not in" not in line


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
        broken = next(one for one in map(Settings, range(40)) if run_one(one).error)
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
