"""L1: replicas that are moved lose nothing, whoever dies in between; planted faults are found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.model.exploration import Broken
from tests.model.reassignment_model import Budget, MoveRules, explore
from tidemill.metadata.controller.election import Live
from tidemill.metadata.controller.reassignment import advanced
from tidemill.metadata.image.metadata_image import PartitionImage

STATES_MAX = 300_000
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


def _same_epoch(
    partition: PartitionImage, live: Live, min_isr: int, led: Collection[int]
) -> PartitionImage:
    after = advanced(partition, live, min_isr, led)
    if after.leader != partition.leader:
        return after
    return replace(after, leader_epoch=partition.leader_epoch)


def _forgotten_at_once(
    partition: PartitionImage, live: Live, min_isr: int, _led: Collection[int]
) -> PartitionImage:
    return advanced(partition, live, min_isr, ())


def _leaves_the_isr(
    partition: PartitionImage, live: Live, min_isr: int, led: Collection[int]
) -> PartitionImage:
    after = advanced(partition, live, min_isr, led)
    if after.leader == partition.leader:
        return after
    return replace(after, isr=tuple(one for one in after.isr if one != partition.leader))


@pytest.mark.parametrize(
    ("mutant", "replicas", "targets"),
    [
        (_same_epoch, (0, 1, 2), AWAY_AND_BACK),
        (_forgotten_at_once, (0, 1), ELSEWHERE),
        (_leaves_the_isr, (0, 1), ELSEWHERE),
    ],
    ids=["no epoch bump on removal", "former leader forgotten", "moved leader dropped"],
)
def test_the_exploration_finds_a_planted_fault(mutant, replicas, targets):
    rules = MoveRules(advanced=mutant)
    with pytest.raises(Broken):
        explore(rules, replicas, Budget(targets, crashes=0), states_max=STATES_MAX)
