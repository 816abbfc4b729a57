from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId
from tidemill.metadata.controller.election import (
    after_isr_change,
    after_unclean_restart,
    new_partition,
    reconcile,
    restart_unclean,
    with_live_brokers,
)
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig

ONE = TopicConfig()
TWO = TopicConfig(min_insync_replicas=2)
UNCLEAN = TopicConfig(unclean_leader_election_enable=True)


def partition(
    leader: int, *, isr: tuple[int, ...], elr: tuple[int, ...] = (), last: int | None = None
) -> PartitionImage:
    return PartitionImage(
        leader=leader,
        leader_epoch=4,
        replicas=(0, 1, 2),
        isr=isr,
        elr=elr,
        last_known_leader=leader if last is None else last,
        partition_epoch=9,
    )


def state(found: PartitionImage) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    return found.leader, found.leader_epoch, found.isr, found.elr


def test_a_new_partition_is_led_by_its_first_replica_with_all_in_sync():
    made = new_partition((2, 0))
    assert state(made) == (2, 0, (2, 0), ())
    assert made.last_known_leader == 2


def test_with_all_brokers_alive_nothing_changes():
    before = partition(0, isr=(0, 1, 2))
    assert with_live_brokers(before, {0, 1, 2}, TWO) == before


def test_a_dead_follower_leaves_the_isr_in_the_same_epoch():
    after = with_live_brokers(partition(0, isr=(0, 1, 2)), {0, 1}, TWO)
    assert state(after) == (0, 4, (0, 1), ())


def test_I11_a_dead_leader_is_replaced_from_the_isr_in_the_next_epoch():
    after = with_live_brokers(partition(0, isr=(0, 2)), {1, 2}, ONE)
    assert state(after) == (2, 5, (2,), ())
    assert after.last_known_leader == 2


def test_a_replica_that_leaves_an_isr_below_the_minimum_moves_to_the_elr():
    after = with_live_brokers(partition(0, isr=(0, 1)), {0}, TWO)
    assert state(after) == (0, 4, (0,), (1,))


def test_with_no_in_sync_replica_alive_the_partition_has_no_leader():
    after = with_live_brokers(partition(0, isr=(0,)), {1, 2}, ONE)
    assert state(after) == (-1, 5, (), (0,))
    assert after.last_known_leader == 0
    assert with_live_brokers(after, {1, 2}, ONE) == after


def test_the_last_in_sync_replica_leads_again_when_it_comes_back():
    waiting = partition(-1, isr=(), elr=(0,), last=0)
    assert state(with_live_brokers(waiting, {0, 1}, ONE)) == (0, 5, (0,), ())


def test_a_leader_from_the_elr_keeps_the_rest_of_the_elr():
    waiting = partition(-1, isr=(), elr=(1, 0), last=0)
    assert state(with_live_brokers(waiting, {1}, TWO)) == (1, 5, (1,), (0,))


def test_a_leader_from_the_isr_is_preferred_to_one_from_the_elr():
    waiting = partition(-1, isr=(2,), elr=(0,), last=2)
    assert with_live_brokers(waiting, {0, 2}, TWO).leader == 2


def test_the_last_known_leader_returns_only_when_isr_and_elr_are_empty():
    lost = partition(-1, isr=(), elr=(), last=1)
    assert state(with_live_brokers(lost, {0, 1}, TWO)) == (1, 5, (1,), ())
    waiting = partition(-1, isr=(), elr=(0,), last=1)
    assert with_live_brokers(waiting, {1}, TWO).leader == -1


def test_an_unclean_election_happens_only_where_the_topic_allows_it():
    before = partition(0, isr=(0,))
    assert with_live_brokers(before, {1, 2}, ONE).leader == -1
    assert state(with_live_brokers(before, {1, 2}, UNCLEAN)) == (1, 5, (1,), ())


def test_an_elr_beside_a_large_enough_isr_is_cleared():
    stale = partition(0, isr=(0,), elr=(1,))
    assert state(with_live_brokers(stale, {0, 1}, ONE)) == (0, 4, (0,), ())
    # The leader dies at the same moment: a replica in the stale elr may lack records.
    assert state(with_live_brokers(stale, {1}, ONE)) == (-1, 5, (), (0,))


# --- unclean restarts ---


def test_I14_an_unclean_broker_leaves_isr_and_elr():
    assert state(after_unclean_restart(partition(0, isr=(0, 1)), 1)) == (0, 4, (0,), ())
    assert state(after_unclean_restart(partition(0, isr=(0,), elr=(1,)), 1)) == (0, 4, (0,), ())


def test_I14_an_unclean_leader_resigns_if_others_are_in_sync():
    assert state(after_unclean_restart(partition(0, isr=(0, 1)), 0)) == (-1, 5, (1,), ())
    waiting = partition(0, isr=(0,), elr=(1,))
    assert state(after_unclean_restart(waiting, 0)) == (-1, 5, (), (1,))


def test_the_only_in_sync_replica_leads_in_a_new_epoch_after_an_unclean_stop():
    assert state(after_unclean_restart(partition(0, isr=(0,)), 0)) == (0, 5, (0,), ())
    alone = replace(new_partition((0,)), leader_epoch=7)
    assert state(after_unclean_restart(alone, 0)) == (0, 8, (0,), ())


def test_an_unclean_broker_outside_isr_and_elr_changes_nothing():
    before = partition(0, isr=(0, 1))
    assert after_unclean_restart(before, 2) == before


# --- whole images ---


def image(*partitions: PartitionImage, live: tuple[int, ...]) -> MetadataImage:
    topic = TopicImage(name="t", topic_id=TopicId(UUID(int=1)), partitions=partitions, config=ONE)
    brokers = {one: BrokerImage(broker_id=one, epoch=1, host="h", port=1) for one in live}
    return MetadataImage(brokers=brokers, topics={"t": topic}, names={UUID(int=1): "t"})


def test_reconcile_names_only_partitions_that_must_change():
    found = reconcile(image(partition(1, isr=(1,)), partition(0, isr=(0, 1)), live=(1, 2)))
    assert [(one.partition, one.after.leader) for one in found] == [(1, 1)]
    assert found[0].before.partition_epoch == 9


def test_a_restart_touches_every_partition_the_broker_was_in_sync_for():
    found = restart_unclean(
        image(partition(0, isr=(0,)), partition(1, isr=(1,)), partition(1, isr=(1, 0)), live=()), 0
    )
    assert [one.partition for one in found] == [0, 2]


# --- proposals of the leader ---


def proposed(
    before: PartitionImage,
    isr: tuple[int, ...],
    *,
    leader_epoch: int = 4,
    partition_epoch: int = 9,
    isr_min: int = 2,
) -> PartitionImage:
    return after_isr_change(
        before,
        isr,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        live={0, 1},
        isr_min=isr_min,
    )


def test_a_follower_joins_the_isr_and_the_elr_empties():
    after = proposed(partition(1, isr=(1,), elr=(0, 2)), (1, 0))
    assert state(after) == (1, 4, (0, 1), ())


def test_a_follower_leaves_the_isr_for_the_elr_when_too_few_are_left():
    assert state(proposed(partition(0, isr=(0, 1)), (0,))) == (0, 4, (0,), (1,))
    assert state(proposed(partition(0, isr=(0, 1)), (0,), isr_min=1)) == (0, 4, (0,), ())


def test_one_joins_while_another_leaves():
    assert state(proposed(partition(0, isr=(0, 2)), (0, 1))) == (0, 4, (0, 1), ())


@pytest.mark.parametrize(
    ("isr", "epochs", "code"),
    [
        ((0, 1), {"leader_epoch": 3}, ErrorCode.FENCED_LEADER_EPOCH),
        ((0, 1), {"leader_epoch": 5}, ErrorCode.FENCED_LEADER_EPOCH),
        ((0, 1), {"partition_epoch": 8}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1,), {}, ErrorCode.INVALID_REQUEST),
        ((0, 7), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((0, 2), {}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_I15_a_proposal_that_is_stale_or_wrong_has_no_effect(isr, epochs, code):
    with pytest.raises(KafkaError) as refused:
        proposed(partition(0, isr=(0,)), isr, **epochs)
    assert refused.value.code is code


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("live"), st.sets(st.integers(0, 2))),
        st.tuples(st.just("unclean"), st.integers(0, 2)),
        st.tuples(st.just("isr"), st.sets(st.integers(0, 2))),
    ),
    max_size=20,
)


@given(events=EVENTS, config=st.sampled_from([ONE, TWO, UNCLEAN]))
def test_I11_epochs_never_go_back_and_a_leader_is_always_in_its_isr(events, config):
    now = new_partition((0, 1, 2))
    live = {0, 1, 2}
    for event, argument in events:
        before = now
        match event, argument:
            case "live", set(brokers):
                live = brokers
                now = with_live_brokers(now, live, config)
            case "unclean", int(broker):
                now = after_unclean_restart(now, broker)
            case "isr", set(isr) if now.leader in isr and isr <= live:
                now = after_isr_change(
                    now,
                    tuple(sorted(isr)),
                    leader_epoch=now.leader_epoch,
                    partition_epoch=now.partition_epoch,
                    live=live,
                    isr_min=config.min_insync_replicas,
                )
        assert now.leader_epoch >= before.leader_epoch
        assert now.leader == before.leader or now.leader_epoch > before.leader_epoch
        assert now.leader == -1 or now.leader in now.isr
        assert not set(now.isr) & set(now.elr)
        assert set(now.isr) | set(now.elr) <= {0, 1, 2}
