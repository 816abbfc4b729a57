"""L1: no interleaving lets a mark pass a replica that may be elected; planted faults are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.exploration import Broken
from tests.model.in_sync_model import Budget, Rules, explore
from tidemill.core.errors import ErrorCode
from tidemill.replication.in_sync import InSync
from tidemill.replication.isr import UNKNOWN_OFFSET, FollowerPosition

STATES_MAX = 100_000
SMALL = Budget(appends=1, failovers=1, unknowns=1, leavings=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("isr", "budget"),
    [
        ((0, 1), SMALL),
        ((0, 1), SMALL._replace(failovers=2)),
        ((0, 1), SMALL._replace(appends=2)),
        ((0, 1, 2), Budget(appends=1, failovers=0, unknowns=1, leavings=2)),
        ((0, 1, 2), Budget(appends=1, failovers=1, unknowns=1, leavings=1)),
    ],
)
def test_I12_I14_whoever_may_be_elected_has_all_that_was_promised(isr, budget):
    assert explore(Rules.real(), isr, budget, states_max=STATES_MAX) > 500


def _withdraw(sets: InSync, base: int) -> None:
    sets.refused(base, ErrorCode.INELIGIBLE_REPLICA)


def _reset(sets: InSync, isr: tuple[int, ...], partition_epoch: int) -> InSync:
    return InSync(sets._leader_id, isr, max(partition_epoch, sets.partition_epoch))


def _known_only(sets: InSync, end: int, positions: dict[int, FollowerPosition]) -> int:
    ends = [
        positions[one].log_end_offset
        for one in sets.counted
        if one in positions and positions[one].log_end_offset != UNKNOWN_OFFSET
    ]
    return min([end, *ends])


@pytest.mark.parametrize(
    "mutant",
    [
        replace(Rules.real(), unanswered=_withdraw),
        replace(Rules.real(), image=_reset),
        replace(Rules.real(), agreed=_known_only),
    ],
    ids=["withdraw on unknown", "reset on any image", "skip unknown member"],
)
def test_the_exploration_finds_a_planted_fault(mutant):
    with pytest.raises(Broken) as caught:
        explore(mutant, (0, 1), SMALL, states_max=STATES_MAX)
    assert "appends" in str(caught.value)
