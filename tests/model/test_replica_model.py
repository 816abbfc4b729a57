"""L1: replicas that die and return, with and without loss, lose nothing that was promised."""

from __future__ import annotations

import pytest

from tests.model.replica_model import NEVER, SOMETIME, Budget, World, explore

STATES_MAX = 20_000
PAIR = World(2)
FORGETFUL = World(2, flushes=NEVER)
SUSPECTS = World(2, min_isr=2, flushes=NEVER, hears_at_once=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "budget", "states_min"),
    [
        (World(2, isr=(0,), flushes=SOMETIME), Budget(appends=2), 100),
        (PAIR, Budget(appends=2, crashes=1), 500),
        (PAIR, Budget(clean_stops=1, late=1), 500),
        (FORGETFUL, Budget(power_losses=1), 200),
        (FORGETFUL, Budget(power_losses=1, late=1), 500),
        (FORGETFUL._replace(isr=(0,)), Budget(power_losses=1, late=1), 500),
        (FORGETFUL._replace(hears_at_once=True), Budget(clean_stops=1, power_losses=1), 1_000),
        (SUSPECTS, Budget(crashes=1, power_losses=1), 3_000),
        (SUSPECTS, Budget(crashes=1, new_disks=1), 200),
    ],
    ids=[
        "one outside the set",
        "a crash",
        "a clean stop and a late message",
        "a power loss",
        "a power loss and a late message",
        "a power loss outside the set",
        "a clean stop and a power loss",
        "suspects",
        "a new disk",
    ],
)
def test_I9_I12_I13_I14_I16_nothing_promised_is_lost(world, budget, states_min):
    assert explore(world, budget, states_max=STATES_MAX) > states_min
