"""Which moves the controller plans by itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from uuid import UUID

from tidemill.core.ids import NO_LEADER, TopicId
from tidemill.core.limits import MOVES_PER_BROKER_MAX, PARTITIONS_PLANNED_PER_SLICE
from tidemill.core.loop.steps import finished
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MemberImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.rules.election import new_partition
from tidemill.metadata.rules.healing import evening_moves, filling_moves, vacating_moves
from tidemill.metadata.rules.replica_survey import ReplicaSurvey

NOBODY = frozenset[int]()


def topic(name: str, *replicas: Sequence[int]) -> TopicImage:
    return TopicImage(
        name=name,
        topic_id=TopicId(UUID(int=len(name))),
        partitions=tuple(new_partition(tuple(one)) for one in replicas),
        overrides={},
        config=TopicConfig(),
    )


def image(
    racks: str, *topics: TopicImage, leaving: Collection[int] = (), dead: Collection[int] = ()
) -> MetadataImage:
    """Brokers 0, 1, ... in these racks; the last one awaits its share."""
    ids = range(len(racks))
    return MetadataImage(
        brokers={
            one: BrokerImage(
                broker_id=one,
                epoch=1,
                host="h",
                port=1,
                rack=racks[one],
                leaving=one in leaving,
                software=THIS_SOFTWARE,
            )
            for one in ids
            if one not in dead
        },
        members={
            one: MemberImage(broker_id=one, epoch=1, rack=racks[one], awaits_share=one == ids[-1])
            for one in ids
        },
        topics={one.name: one for one in topics},
    )


def moving_without_leader(giver: int, taker: int) -> PartitionImage:
    """The only copy is on its way to another broker, and the one that has it is gone."""
    return replace(
        new_partition((giver,)),
        leader=NO_LEADER,
        leader_epoch=1,
        replicas=(taker, giver),
        adding=(taker,),
        removing=(giver,),
        isr=(),
        elr=(giver,),
    )


def test_moves_without_a_leader_do_not_keep_the_other_replicas_on_a_broker_that_is_gone():
    stopped = [moving_without_leader(2, 0)] * MOVES_PER_BROKER_MAX
    some = topic("t", (1, 2))
    some = replace(some, partitions=(*some.partitions, *stopped))
    moves, _ = finished(vacating_moves(image("abcd", some, dead=[2]), [2]))
    assert list(moves.values()) == [(1, 3)]


def test_moves_without_a_leader_do_not_keep_others_from_a_broker_that_has_joined():
    stopped = [moving_without_leader(0, 2)] * MOVES_PER_BROKER_MAX
    some = topic("t", *[(1,)] * 6)
    some = replace(some, partitions=(*some.partitions, *stopped))
    moves, _ = finished(filling_moves(image("abc", some, dead=[0]), [2], [0], {}))
    assert list(moves.values()) == [(2,)]


def waiting_for(away: int, giver: int, taker: int, leader: int) -> PartitionImage:
    """The new replica has everything; the move ends when the broker that is away is back."""
    return replace(
        new_partition((leader, giver)),
        replicas=(taker, away, leader, giver),
        adding=(taker,),
        removing=(giver,),
        isr=(taker, leader, giver),
    )


def test_moves_that_wait_for_a_broker_that_is_away_do_not_keep_a_drained_one_from_giving():
    """No other broker is left that could have its replicas: it is waited for, perhaps for ever."""
    waiting = [waiting_for(3, giver=0, taker=1, leader=2)] * MOVES_PER_BROKER_MAX
    some = topic("t", (0,))
    some = replace(some, partitions=(*some.partitions, *waiting))
    moves, _ = finished(vacating_moves(image("abcd", some, dead=[3]), [0, 3]))
    assert list(moves.values()) == [(1,)]


def test_moves_that_wait_for_a_broker_that_is_away_do_not_keep_others_from_one_that_has_joined():
    waiting = [waiting_for(3, giver=0, taker=4, leader=2)] * MOVES_PER_BROKER_MAX
    some = topic("t", *[(1,)] * 20)
    some = replace(some, partitions=(*some.partitions, *waiting))
    moves, _ = finished(filling_moves(image("abcde", some, dead=[3]), [4], NOBODY, {}))
    assert (4,) in moves.values()


def test_no_partition_loses_a_rack_while_a_broker_is_about_to_stop():
    cluster = image("abb", topic("t", *[(0, 1)] * 6), leaving=[1])
    assert finished(filling_moves(cluster, [2], NOBODY, {}))[0] == {}
    assert finished(evening_moves(cluster, {})) == ({}, False)
    stays = image("abb", topic("t", *[(0, 1)] * 6))
    moves, _ = finished(filling_moves(stays, [2], NOBODY, {}))
    assert {tuple(sorted(one)) for one in moves.values()} == {(0, 2)}


def test_S11_all_partitions_are_looked_at_in_slices():
    wide = image("abc", topic("t", *[(0, 1)] * 10 * PARTITIONS_PLANNED_PER_SLICE))
    assert sum(1 for _ in ReplicaSurvey.of(wide)) == 10
