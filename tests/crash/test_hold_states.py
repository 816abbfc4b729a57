"""A power loss at any moment of a log with held records breaks no promise; bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.crash.exploration import explored
from tidemill.core.rng import SeededRng
from tidemill.testing.crash.crash_states import CrashExplorer
from tidemill.testing.crash.hold_states import check_holds, cut_workload, hold_workload
from tidemill.testing.crash.holding_broker import (
    HoldingBroker,
    HoldPromises,
    JournaledHoldingBroker,
)
from tidemill.testing.crash.promises import BrokenPromise
from tidemill.testing.mutants import MUTANTS, Mutant, seeds_to_detection
from tidemill.testing.sim.disk import SimDisk

pytestmark = pytest.mark.slow

STEPS = 22

Workload = Callable[[HoldingBroker, SimDisk], None]


def by_chance(seed: int) -> Workload:
    return partial(hold_workload, rng=SeededRng(seed), steps=STEPS)


def explore(
    chosen: Workload, seed: int = 0, broker_class: type[HoldingBroker] = HoldingBroker
) -> CrashExplorer:
    held = HoldPromises()
    return explored(
        chosen,
        seed,
        broker_class=partial(broker_class, held=held),
        check=partial(check_holds, held=held),
    )


both_brokers = pytest.mark.parametrize("broker_class", [HoldingBroker, JournaledHoldingBroker])


@both_brokers
def test_I31_I32_I45_hold_in_every_crash_state_of_held_records(crash_seed, broker_class):
    explorer = explore(by_chance(crash_seed), crash_seed, broker_class)
    assert explorer.states > explorer.calls > 30


@both_brokers
def test_I45_no_snapshot_of_batches_that_were_cut_is_believed_after_a_crash(
    fate_seed, broker_class
):
    explore(cut_workload, fate_seed, broker_class)


# --- planted bugs ---------------------------------------------------------------------------------

SEEDS_MAX = 4


def finds(planted: Mutant) -> bool:
    workloads = [cut_workload, *map(by_chance, range(SEEDS_MAX))]
    found = seeds_to_detection(
        planted, lambda seed: explore(workloads[seed], seed), seeds_max=len(workloads)
    )
    return found is not None and isinstance(found.error, BrokenPromise)


@pytest.mark.parametrize(
    "name",
    [
        "closed set forgotten at takeover",
        "carried copy ignored",
        "retention ignores the floor",
        "floor before durable",
        "snapshot of another log used",
        "taken rows not captured",
    ],
)
def test_a_planted_bug_of_holds_is_found(name):
    if not MUTANTS[name].is_plantable:
        pytest.skip("compiled code cannot be changed")
    assert finds(MUTANTS[name])
