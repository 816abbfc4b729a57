"""L1: with vouches, no interleaving lets two brokers act as leaders; planted faults are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.exploration import Broken
from tests.model.vouching_model import Budget, Rules, explore

STATES_MAX = 150_000
SMALL = Budget(elections=1, lost_leases=1, breaks=0, restarts=0)
TWO = {"isr": (0, 1)}
THREE = {"isr": (0, 1, 2)}
ELIGIBLE = {"isr": (0, 1), "elr": (2,), "least_in_sync": 3}


@pytest.mark.slow
@pytest.mark.timeout(600)  # the largest has 80,000 states
@pytest.mark.parametrize(
    ("budget", "sets"),
    [
        (SMALL, TWO),
        (SMALL._replace(breaks=1), TWO),
        (SMALL._replace(restarts=1), TWO),
        (SMALL._replace(elections=2, lost_leases=2), TWO),
        (SMALL, THREE),
        (SMALL, ELIGIBLE),
    ],
    ids=["two", "broken connection", "restart", "two elections", "three", "eligible"],
)
def test_I8_I11_at_most_one_broker_acts_as_the_leader(budget, sets):
    assert explore(Rules(), budget, **sets, states_max=STATES_MAX) > 1000


@pytest.mark.parametrize(
    ("mutant", "budget", "sets"),
    [
        (replace(Rules(), counts_arrival=True), SMALL, TWO),
        (Rules(), SMALL._replace(sleeps=2), TWO),
        (replace(Rules(), is_silent=False), SMALL, TWO),
        (replace(Rules(), starts_silent=False), SMALL._replace(restarts=1), TWO),
        (replace(Rules(), all_vouch=False), SMALL._replace(elections=2), ELIGIBLE),
        (
            replace(Rules(), joins_while_silent=True),
            SMALL._replace(elections=2, lost_leases=2),
            TWO,
        ),
    ],
    ids=[
        "vouched by arrival",
        "moved clock",
        "new leader not silent",
        "not silent after a restart",
        "eligible replicas do not vouch",
        "joins while the leader is silent",
    ],
)
def test_the_exploration_finds_a_planted_fault(mutant, budget, sets):
    with pytest.raises(Broken) as caught:
        explore(mutant, budget, **sets, states_max=STATES_MAX)
    assert "is elected" in str(caught.value)
