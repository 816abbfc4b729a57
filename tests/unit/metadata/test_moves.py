"""Three brokers on one store: moves of replicas, draining, remaking, giving leaderships back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tests.unit.metadata.three_brokers import partition, propose, three_brokers
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import (
    BALANCE_AFTER_RETURN_S,
    FORMER_LEADER_KEPT_S,
    MOVES_PER_BROKER_MAX,
    UPKEEP_INTERVAL_S,
)
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image import nodes
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.metadata.image.overrides import DRAINING, broker_owner
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.rules.topic_planner import ConfigChange, TopicSpec

T0 = TopicPartition("t", 0)
OFFSETS = TopicSpec(name=OFFSETS_TOPIC, by_coordinator=True)


async def some_brokers(*replicas: int, flags: Sequence[str] = ()) -> tuple[SmallCluster, Cluster]:
    """Three brokers with a topic of one partition; broker 0 is the controller."""
    small = SmallCluster(*flags)
    controller, *_ = await small.start(0, 1, 2)
    await controller.create_topics([TopicSpec(name="t", assignments={0: list(replicas)})])
    await pass_time(small, FORMER_LEADER_KEPT_S)
    return small, controller


async def pass_time(small: SmallCluster, seconds: float) -> None:
    """Time passes, and all brokers look again."""
    small.clock.advance(seconds)
    for member in small.members.values():
        member.cluster._keeper.mark(nodes.BROKERS)
    await small.catch_up()


async def joins(small: SmallCluster, isr: list[int]) -> None:
    """The leader finds all of them in sync."""
    clusters = [one.cluster for one in small.members.values()]
    now = partition(clusters[0])
    await propose(clusters, isr, now, sender=now.leader)
    await small.catch_up()


async def set_draining(cluster: Cluster, broker_id: int, *, value: str | None) -> None:
    operation = AlterOp.DELETE if value is None else AlterOp.SET
    change = OverrideChange(owner=broker_owner(broker_id), changes=[(DRAINING, operation, value)])
    (result,) = await cluster.alter_overrides([change])
    assert result.code is ErrorCode.NONE


def test_replicas_move_to_another_broker_when_it_is_in_sync(run):
    async def scenario() -> None:
        small, controller = await some_brokers(0, 1)
        assert await controller.reassign({T0: [0, 2]}) == [None]
        await small.catch_up()
        assert partition(controller).replicas == (0, 2, 1)
        await joins(small, [0, 1, 2])
        now = partition(controller)
        assert (now.replicas, now.isr, now.leader, now.leader_epoch) == ((0, 2), (0, 2), 0, 1)
        assert not now.is_moving
        assert partition(small.members[2].cluster) == now

    run(scenario())


def test_I8_a_leader_that_is_moved_stays_a_replica_for_a_session(run):
    async def scenario() -> None:
        small, controller = await some_brokers(0, 1)
        await controller.reassign({T0: [2, 1]})
        await joins(small, [0, 1, 2])
        handed = partition(controller)
        assert (handed.leader, handed.leader_epoch, sorted(handed.isr)) == (2, 1, [0, 1, 2])
        await pass_time(small, FORMER_LEADER_KEPT_S / 2)
        assert partition(controller).replicas == (2, 1, 0)
        await pass_time(small, FORMER_LEADER_KEPT_S)
        now = partition(controller)
        assert (now.replicas, now.leader, now.leader_epoch) == ((2, 1), 2, 2)

    run(scenario())


def test_a_new_controller_goes_on_with_a_move(run):
    async def scenario() -> None:
        small, controller = await some_brokers(1, 0)
        await controller.reassign({T0: [1, 2]})
        await small.catch_up()
        small.crash(0)
        await small.catch_up()
        successor = small.members[1].cluster
        assert successor.is_controller
        await joins(small, [1, 2])
        await pass_time(small, FORMER_LEADER_KEPT_S)
        assert partition(successor).replicas == (1, 2)
        assert not partition(successor).is_moving

    run(scenario())


def test_a_move_is_taken_back(run):
    async def scenario() -> None:
        small, controller = await some_brokers(0, 1)
        await controller.reassign({T0: [2]})
        assert await controller.reassign({T0: None}) == [None]
        assert partition(controller).replicas == (0, 1)
        (refused,) = await controller.reassign({T0: None})
        assert refused is not None
        assert refused.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        (unknown,) = await controller.reassign({TopicPartition("u", 0): [0]})
        assert unknown is not None
        assert unknown.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not small.members[0].alarms

    run(scenario())


def test_a_drained_broker_is_given_nothing_and_loses_what_it_has(run):
    async def scenario() -> None:
        small, controller = await some_brokers(1, 0)
        await set_draining(controller, 1, value="true")
        await small.catch_up()
        now = partition(controller)
        assert (now.adding, now.removing) == ((2,), (1,))
        (made,) = await controller.create_topics([TopicSpec(name="u", partitions=8)])
        assert made.topic is not None
        assert 1 not in {one for p in made.topic.partitions for one in p.replicas}
        await joins(small, [0, 1, 2])
        await pass_time(small, FORMER_LEADER_KEPT_S)
        assert partition(controller).replicas == (2, 0)
        (refused,) = await controller.reassign({T0: [1, 0]})
        assert refused is not None
        assert "drained" in refused.detail
        await set_draining(controller, 1, value=None)
        assert await controller.reassign({T0: [1, 0]}) == [None]

    run(scenario())


def test_replicas_of_a_broker_that_is_gone_for_long_are_remade_elsewhere(run):
    async def scenario() -> None:
        small, controller = await some_brokers(0, 1, flags=["replica.remake.delay.ms=60000"])
        small.crash(1)
        await small.catch_up()
        await pass_time(small, 59)
        assert partition(controller).replicas == (0, 1)
        await pass_time(small, 2)
        assert partition(controller).adding == (2,)
        await joins(small, [0, 2])
        assert partition(controller).replicas == (0, 2)

    run(scenario())


def test_replicas_of_a_broker_whose_disk_failed_are_remade_elsewhere_too(run):
    async def scenario() -> None:
        small, controller = await some_brokers(0, 1, flags=["replica.remake.delay.ms=60000"])
        small.members[1].cluster.disk_failed()
        await small.catch_up()
        await pass_time(small, 59)
        assert partition(controller).replicas == (0, 1)
        await pass_time(small, 2)
        assert partition(controller).adding == (2,)

    run(scenario())


def test_a_sole_copy_is_never_remade(run):
    async def scenario() -> None:
        small, controller = await some_brokers(1, flags=["replica.remake.delay.ms=60000"])
        small.crash(1)
        await small.catch_up()
        await pass_time(small, 120)
        assert partition(controller).replicas == (1,)

    run(scenario())


@pytest.mark.parametrize(("enabled", "leader"), [("true", 1), ("false", 2)])
def test_leaderships_go_back_by_themselves_soon_after_a_broker_has_come_back(run, enabled, leader):
    async def scenario() -> None:
        small = SmallCluster(f"auto.leader.rebalance.enable={enabled}")
        controller, *_ = await small.start(0, 1, 2)
        await controller.create_topics([TopicSpec(name="t", assignments={0: [1, 2, 0]})])
        await small.catch_up()
        small.crash(1)
        await small.catch_up()
        assert partition(controller).leader == 2
        await small.start(1)
        await joins(small, [0, 1, 2])
        await pass_time(small, BALANCE_AFTER_RETURN_S)
        assert partition(controller).leader == leader

    run(scenario())


def test_replicas_spread_by_themselves_if_that_is_wanted(run):
    async def scenario() -> None:
        small = SmallCluster("auto.rebalance=always")
        controller, *_ = await small.start(0, 1, 2)
        assignments = {index: [0] for index in range(6)}
        await controller.create_topics([TopicSpec(name="t", assignments=assignments)])
        await pass_time(small, BALANCE_AFTER_RETURN_S)
        moving = [one for one in controller.image.topics["t"].partitions if one.is_moving]
        assert sorted(one.adding for one in moving) == [(1,), (1,), (2,), (2,)]

    run(scenario())


def test_a_broker_that_is_gone_and_empty_is_forgotten(run):
    async def scenario() -> None:
        small, controller = await some_brokers(0, 1)
        for broker_id, code in ((1, ErrorCode.INVALID_REQUEST), (7, _NOT_REGISTERED)):
            with pytest.raises(KafkaError) as refused:
                await controller.unregister_broker(broker_id)
            assert refused.value.code is code
        small.crash(1)
        await small.catch_up()
        with pytest.raises(KafkaError, match="holds 1 replicas"):
            await controller.unregister_broker(1)
        small.crash(2)
        await small.catch_up()
        await controller.unregister_broker(2)
        assert sorted(controller.image.members) == [0, 1]

    run(scenario())


_NOT_REGISTERED = ErrorCode.BROKER_ID_NOT_REGISTERED


# --- what is stored ---


async def taken_over(first: int, then: int) -> tuple[SmallCluster, Cluster]:
    """A topic of a controller with one default of the minimum, and a successor with another."""
    small = SmallCluster(f"min.insync.replicas={first}")
    controller, *_ = await small.start(0)
    small.flags = (f"min.insync.replicas={then}",)
    await small.start(1, 2)
    await controller.create_topics([TopicSpec(name="t", assignments={0: [0, 1, 2]})])
    await small.catch_up()
    assert minimums(small) == {first}
    small.crash(0)
    await small.catch_up()
    successor = small.members[1].cluster
    assert successor.is_controller
    return small, successor


def minimums(small: SmallCluster) -> set[int]:
    return {one.cluster.image.topics["t"].min_isr for one in small.members.values()}


def test_brokers_with_other_defaults_agree_on_the_minimum(run):
    async def scenario() -> None:
        small, successor = await taken_over(1, 2)
        assert minimums(small) == {2}
        assert partition(successor).partition_epoch > 1

    run(scenario())


def test_a_lower_default_of_the_next_controller_does_not_lower_the_minimum(run):
    async def scenario() -> None:
        small, successor = await taken_over(2, 1)
        assert minimums(small) == {2}
        other = ConfigChange(name="t", changes=[("flush.ms", AlterOp.SET, "1")])
        await successor.alter_topic_configs([other])
        await small.catch_up()
        assert minimums(small) == {2}

    run(scenario())


@pytest.mark.parametrize(
    ("changes", "replace_all"),
    [
        ([("min.insync.replicas", AlterOp.SET, "1")], False),
        ([("min.insync.replicas", AlterOp.DELETE, None)], False),
        ([], True),
    ],
)
def test_who_says_so_lowers_the_minimum_of_a_topic(run, changes, replace_all):
    async def scenario() -> None:
        small, successor = await taken_over(2, 1)
        change = ConfigChange(name="t", changes=changes, replace_all=replace_all)
        await successor.alter_topic_configs([change])
        await small.catch_up()
        assert minimums(small) == {1}

    run(scenario())


def test_a_return_that_a_bad_page_cannot_be_told_of_is_told_when_it_is_readable_again(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        topic = small.stored_topics()["t"]
        page = nodes.PAGES + f"/{topic.topic_id.int % 64:02}"
        good = small.server.get(page)
        assert good is not None
        await small.put(page, b"no page")
        await small.catch_up()
        small.crash(2)
        await small.start(2, unclean=True)
        member = clusters[0].image.members[2]
        assert member.untold
        assert 2 in partition(clusters[0]).isr
        await small.mend(page, good.value)
        await small.catch_up()
        assert 2 not in partition(clusters[0]).isr
        assert not clusters[0].image.members[2].untold

    run(scenario())


# --- internal topics ------------------------------------------------------------------------------


def replica_counts(cluster: Cluster) -> set[int]:
    return {len(one.target) for one in cluster.image.topics[OFFSETS_TOPIC].partitions}


async def grown_from_one(*flags: str) -> tuple[SmallCluster, Cluster]:
    """The topic of offsets was made by one broker; two more have joined, and some time passed."""
    small = SmallCluster("offsets.topic.num.partitions=6", *flags)
    (controller,) = await small.start(0)
    await controller.create_topics([OFFSETS])
    assert replica_counts(controller) == {1}
    await small.start(1, 2)
    for _ in range(6):
        await pass_time(small, UPKEEP_INTERVAL_S)
    return small, controller


def test_F104_the_topic_of_offsets_gets_more_replicas_when_brokers_have_joined(run):
    async def scenario() -> None:
        _small, controller = await grown_from_one()
        partitions = controller.image.topics[OFFSETS_TOPIC].partitions
        begun = [one for one in partitions if one.adding]
        assert len(begun) == MOVES_PER_BROKER_MAX  # the others wait until these have copied
        assert all(one.target == (0, 1, 2) and one.leader == 0 for one in begun)

    run(scenario())


def test_F104_the_topic_of_offsets_grows_on_when_a_joined_broker_has_been_away(run):
    async def scenario() -> None:
        small = SmallCluster("offsets.topic.num.partitions=6")
        controller, _ = await small.start(0, 1)
        await controller.create_topics([OFFSETS])
        await small.start(2)
        small.crash(2)
        for _ in range(3):
            await pass_time(small, UPKEEP_INTERVAL_S)
        names = [TopicPartition(OFFSETS_TOPIC, index) for index in range(6)]
        await controller.reassign(dict.fromkeys(names))  # somebody takes back what has begun
        assert replica_counts(controller) == {2}
        await small.start(2)
        await pass_time(small, UPKEEP_INTERVAL_S)
        assert 3 in replica_counts(controller)

    run(scenario())


def test_F104_the_topic_of_offsets_grows_on_when_a_joined_broker_was_about_to_stop(run):
    async def scenario() -> None:
        small = SmallCluster("offsets.topic.num.partitions=6")
        controller, _ = await small.start(0, 1)
        await controller.create_topics([OFFSETS])
        await small.start(2)
        assert replica_counts(controller) == {2, 3}  # the others wait until these have copied
        names = [TopicPartition(OFFSETS_TOPIC, index) for index in range(6)]
        await small.members[2].cluster.leave()
        await controller.reassign(dict.fromkeys(names))  # somebody takes back what has begun
        await pass_time(small, UPKEEP_INTERVAL_S)
        assert replica_counts(controller) == {2}
        small.crash(2)
        await small.start(2)
        await pass_time(small, UPKEEP_INTERVAL_S)
        assert 3 in replica_counts(controller)

    run(scenario())


def test_F104_a_new_controller_gives_single_copies_of_offsets_more_replicas(run):
    async def scenario() -> None:
        small, controller = await grown_from_one("offsets.topic.replication.factor=1")
        assert replica_counts(controller) == {1}
        small.flags = ("offsets.topic.num.partitions=6",)
        for broker_id in (2, 1, 0):
            small.crash(broker_id)
        controller, *_ = await small.start(0, 1, 2)
        await pass_time(small, UPKEEP_INTERVAL_S)
        assert 3 in replica_counts(controller)

    run(scenario())


def test_fewer_replicas_of_offsets_that_somebody_chose_stay(run):
    async def scenario() -> None:
        small = SmallCluster("offsets.topic.num.partitions=1")
        controller, *_ = await small.start(0, 1, 2)
        await controller.create_topics([OFFSETS])
        assert replica_counts(controller) == {3}
        await pass_time(small, UPKEEP_INTERVAL_S)  # it has looked after the last one joined
        await controller.reassign({TopicPartition(OFFSETS_TOPIC, 0): [0, 1]})
        for _ in range(3):
            await pass_time(small, 2 * BALANCE_AFTER_RETURN_S)
        assert replica_counts(controller) == {2}
        small.crash(2)
        await small.catch_up()
        await small.start(2)
        await pass_time(small, 2 * BALANCE_AFTER_RETURN_S)
        assert replica_counts(controller) == {2}

    run(scenario())


def test_fewer_replicas_of_offsets_that_somebody_chose_stay_beside_a_broker_that_is_away(run):
    """It could be given nothing when another one joined: all partitions had what they should."""

    async def scenario() -> None:
        small = SmallCluster("offsets.topic.num.partitions=1")
        controller, *_ = await small.start(0, 1, 2, 3)
        await controller.create_topics([OFFSETS])
        small.crash(3)
        await small.start(4)
        await pass_time(small, UPKEEP_INTERVAL_S)  # it has looked after the last one joined
        await controller.reassign({TopicPartition(OFFSETS_TOPIC, 0): [0, 1]})
        await pass_time(small, UPKEEP_INTERVAL_S)
        assert replica_counts(controller) == {2}

    run(scenario())
