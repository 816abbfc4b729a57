"""The simulation finds planted bugs. How soon it finds each of them is in docs/internals."""

from __future__ import annotations

import pytest

from tests.sim.mutant_hunt import hunt
from tests.sim.seed_search import Settings, run_one, shrunk
from tidemill.testing.mutants import MUTANTS, MutantNotPlantable

QUICK = [
    "ack at once",
    "ack before followers have it",
    "skip unknown member",
    "mark from the proposed isr only",
    "join too early",
    "readers see beyond the mark",
    "divergence not checked",
    "elect outside the isr",
    "sequence not checked",
]
"""Found within a few seeds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name):
    if not MUTANTS[name].is_plantable:
        pytest.skip("its module is compiled")
    assert hunt(MUTANTS[name], seeds_max=12) is not None


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
