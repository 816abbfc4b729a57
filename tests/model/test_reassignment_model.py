"""L1: replicas that are moved lose nothing, whoever dies in between."""

from __future__ import annotations

import pytest

from tests.model.reassignment_model import Budget, MoveRules, explore

STATES_MAX = 300_000
STOPPED_MIN = 1_000
ELSEWHERE, AWAY_AND_BACK = ((2, 1),), ((0, 1), (0, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "budget", "min_isr"),
    [
        ((0, 1), Budget(ELSEWHERE), 1),
        ((0, 1), Budget(((1, 2),)), 2),
        ((0,), Budget(((1, 2),)), 1),
        ((0,), Budget(((1, 2), None)), 1),
        ((0, 1, 2), Budget(AWAY_AND_BACK), 2),
    ],
    ids=["the leader goes", "a follower goes", "grows", "taken back", "away and back"],
)
def test_I8_I12_I14_nothing_promised_is_lost_by_a_move(replicas, budget, min_isr):
    assert explore(MoveRules(min_isr), replicas, budget, states_max=STATES_MAX) > 10_000


def test_I8_a_leader_that_is_about_to_stop_answers_nobody_with_less_than_was_promised():
    budget = Budget(ELSEWHERE, crashes=0, stops=1)
    assert explore(MoveRules(), (0, 1), budget, states_max=STATES_MAX) > STOPPED_MIN
