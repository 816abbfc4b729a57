"""Brokers that join are given their share by themselves, and nobody else is (ADR 0028)."""

from __future__ import annotations

from collections import Counter

from tests.unit.metadata.small_cluster import SmallCluster
from tests.unit.metadata.test_moves import pass_time, set_draining
from tests.unit.metadata.three_brokers import propose
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import BALANCE_AFTER_RETURN_S, FORMER_LEADER_KEPT_S, MOVES_PER_BROKER_MAX
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.image.overrides import ALL_BROKERS
from tidemill.metadata.image.page import page_of
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.rules.topic_planner import TopicSpec

ROUNDS_MAX = 20


async def founded(*replicas: list[int], flags: tuple[str, ...] = ()) -> SmallCluster:
    """Brokers 0 and 1 with a topic; broker 0 is the controller."""
    small = SmallCluster(*flags)
    controller, _ = await small.start(0, 1)
    spec = TopicSpec(name="t", assignments=dict(enumerate(replicas)))
    (made,) = await controller.create_topics([spec])
    assert made.code is ErrorCode.NONE
    await pass_time(small, FORMER_LEADER_KEPT_S)
    return small


def controller_of(small: SmallCluster) -> Cluster:
    (found,) = [one.cluster for one in small.members.values() if one.cluster.is_controller]
    return found


def partitions(small: SmallCluster) -> tuple[PartitionImage, ...]:
    return controller_of(small).image.topics["t"].partitions


def replicas(small: SmallCluster) -> list[tuple[int, ...]]:
    return [one.replicas for one in partitions(small)]


def held(small: SmallCluster) -> dict[int, int]:
    return dict(Counter(one for replicas in replicas(small) for one in replicas))


def awaiting(small: SmallCluster) -> list[int]:
    members = controller_of(small).image.members.values()
    return [one.broker_id for one in members if one.awaits_share]


async def copy(small: SmallCluster) -> None:
    """All replicas that come catch up, and those that go are forgotten."""
    clusters = [one.cluster for one in small.members.values()]
    for index, now in enumerate(partitions(small)):
        if now.adding:
            isr = sorted({*now.isr, *now.adding})
            answer = await propose(clusters, isr, now, sender=now.leader, index=index)
            assert answer.code is ErrorCode.NONE
    await small.catch_up()
    await pass_time(small, FORMER_LEADER_KEPT_S)
    await pass_time(small, 1)


async def settle(small: SmallCluster) -> None:
    """Everything that moves by itself has moved, and the leaderships are looked at."""
    for _ in range(ROUNDS_MAX):
        await copy(small)
        if not any(one.is_moving for one in partitions(small)):
            break
    await pass_time(small, BALANCE_AFTER_RETURN_S)


def test_a_broker_that_joins_gets_its_share_of_replicas_and_leaderships(run):
    async def scenario() -> None:
        small = await founded(*[[0, 1], [1, 0]] * 6)
        await small.start(2)
        assert awaiting(small) == [2]
        await settle(small)
        assert held(small) == {0: 8, 1: 8, 2: 8}
        assert Counter(one.leader for one in partitions(small))[2] == 4
        assert awaiting(small) == []

    run(scenario())


def test_a_few_replicas_at_a_time_go_to_a_broker_that_joins(run):
    async def scenario() -> None:
        small = await founded(*[[0], [1]] * 12)
        await small.start(2)
        await pass_time(small, 60)
        moving = [one for one in partitions(small) if one.is_moving]
        assert len(moving) == MOVES_PER_BROKER_MAX
        assert {one.adding for one in moving} == {(2,)}

    run(scenario())


def test_topics_of_one_replica_spread_when_one_broker_becomes_three(run):
    async def scenario() -> None:
        small = SmallCluster()
        (controller,) = await small.start(0)
        await controller.create_topics(
            [TopicSpec(name="t", assignments={n: [0] for n in range(6)})]
        )
        await small.start(1, 2)
        await settle(small)
        assert held(small) == {0: 2, 1: 2, 2: 2}

    run(scenario())


def test_the_brokers_of_an_empty_cluster_await_nothing(run):
    async def scenario() -> None:
        small = await founded([0], [0], [0], [0])
        await pass_time(small, 10 * BALANCE_AFTER_RETURN_S)
        assert replicas(small) == [(0,)] * 4

    run(scenario())


def test_a_broker_that_comes_back_empty_is_given_nothing(run):
    async def scenario() -> None:
        small = await founded([0], [0], [0], [0])
        small.crash(1)
        await small.catch_up()
        await small.start(1)
        await settle(small)
        assert replicas(small) == [(0,)] * 4

    run(scenario())


def test_what_is_moved_off_a_broker_that_had_its_share_stays_away(run):
    async def scenario() -> None:
        small = await founded([0], [0], [0], [0], [0], [0])
        await small.start(2)
        await settle(small)
        assert held(small) == {0: 4, 2: 2}
        back = [TopicPartition("t", n) for n, one in enumerate(replicas(small)) if one == (2,)]
        await controller_of(small).reassign(dict.fromkeys(back, (0,)))
        await settle(small)
        assert held(small) == {0: 6}

    run(scenario())


def test_nothing_moves_between_the_brokers_that_were_there(run):
    async def scenario() -> None:
        small = await founded(*[[0]] * 9, [1])
        await small.start(2)
        await settle(small)
        assert held(small) == {0: 6, 1: 1, 2: 3}
        assert replicas(small)[9] == (1,)

    run(scenario())


def test_a_new_controller_goes_on_giving_a_broker_its_share(run):
    async def scenario() -> None:
        small = await founded(*[[0, 1], [1, 0]] * 9)
        await small.start(2)
        await copy(small)
        assert 0 < held(small)[2] < 12
        small.crash(0)
        await small.catch_up()
        assert controller_of(small).is_controller
        await small.start(0)
        clusters = [one.cluster for one in small.members.values()]
        for index, now in enumerate(partitions(small)):
            isr = sorted({*now.isr, *now.replicas})
            await propose(clusters, isr, now, sender=now.leader, index=index)
        await settle(small)
        assert held(small) == {0: 12, 1: 12, 2: 12}
        assert awaiting(small) == []

    run(scenario())


def test_a_broker_that_joins_and_is_away_for_a_moment_gets_the_rest(run):
    async def scenario() -> None:
        small = await founded(*[[0], [1]] * 15)
        await small.start(2)
        await copy(small)
        small.crash(2)
        await small.catch_up()
        await pass_time(small, 60)
        assert awaiting(small) == [2]
        await small.start(2)
        await settle(small)
        assert held(small) == {0: 10, 1: 10, 2: 10}

    run(scenario())


def test_a_broker_that_was_drained_awaits_nothing_when_it_is_not_any_more(run):
    async def scenario() -> None:
        small = await founded(*[[0], [1]] * 9)
        await small.start(2)
        await set_draining(controller_of(small), 2, value="true")
        await settle(small)
        assert held(small) == {0: 9, 1: 9}
        await set_draining(controller_of(small), 2, value=None)
        await settle(small)
        assert held(small) == {0: 9, 1: 9}

    run(scenario())


def test_a_broker_that_joins_while_nothing_should_move_is_given_its_share_later(run):
    async def scenario() -> None:
        small = await founded([0], [0], [0], flags=("auto.rebalance=off",))
        await small.start(2)
        await settle(small)
        assert held(small) == {0: 3}
        change = [("auto.rebalance", AlterOp.SET, "joined")]
        everywhere = OverrideChange(owner=ALL_BROKERS, changes=change)
        (result,) = await controller_of(small).alter_overrides([everywhere])
        assert result.code is ErrorCode.NONE
        await settle(small)
        assert held(small) == {0: 2, 2: 1}

    run(scenario())


def test_a_move_that_somebody_has_asked_for_ends_where_he_wants_it(run):
    async def scenario() -> None:
        small = await founded([0], [0], [0], [0])
        await controller_of(small).reassign({TopicPartition("t", 0): [1]})
        await small.start(2)
        assert partitions(small)[0].target == (1,)
        await settle(small)
        assert replicas(small)[0] == (1,)
        assert held(small) == {0: 2, 1: 1, 2: 1}

    run(scenario())


def test_a_partition_that_lacks_a_replica_is_not_moved(run):
    async def scenario() -> None:
        small = await founded(*[[0, 1]] * 3)
        small.crash(1)
        await small.catch_up()
        await small.start(2)
        await pass_time(small, 60)
        assert replicas(small) == [(0, 1)] * 3
        await small.start(1)
        clusters = [one.cluster for one in small.members.values()]
        for index, now in enumerate(partitions(small)):
            await propose(clusters, [0, 1], now, sender=0, index=index)
        await settle(small)
        assert held(small) == {0: 2, 1: 2, 2: 2}

    run(scenario())


def test_what_only_a_broker_that_is_away_could_give_is_waited_for(run):
    async def scenario() -> None:
        small = SmallCluster()
        controller, *_ = await small.start(0, 1, 3)
        spec = TopicSpec(name="t", assignments=dict(enumerate([[0, 1], [3, 1]] * 4)))
        await controller.create_topics([spec])
        await pass_time(small, FORMER_LEADER_KEPT_S)
        small.crash(1)
        await small.catch_up()
        await small.start(2)
        await pass_time(small, 60)
        assert held(small) == {0: 4, 1: 8, 3: 4}
        assert awaiting(small) == [2]
        await small.start(1)
        clusters = [one.cluster for one in small.members.values()]
        for index, now in enumerate(partitions(small)):
            await propose(clusters, [now.leader, 1], now, sender=now.leader, index=index)
        await settle(small)
        assert held(small) == {0: 4, 1: 4, 2: 4, 3: 4}
        assert awaiting(small) == []

    run(scenario())


def test_a_broker_that_replaces_one_that_is_gone_gets_its_replicas_and_no_others(run):
    async def scenario() -> None:
        small = await founded(*[[0, 1]] * 4, flags=("replica.remake.delay.ms=60000",))
        small.crash(1)
        await small.catch_up()
        await pass_time(small, 61)
        await small.start(2)
        await settle(small)
        assert held(small) == {0: 4, 2: 4}
        assert awaiting(small) == []

    run(scenario())


def test_a_partition_that_stays_offline_is_not_awaited(run):
    """Else what an operator moves off the broker, weeks later, would come back."""

    async def scenario() -> None:
        small = SmallCluster()
        for broker_id, rack in ((0, "a"), (1, "b"), (9, "c")):
            small.flags = (f"broker.rack={rack}",)
            await small.start(broker_id)
        spec = TopicSpec(name="t", assignments={index: [0, 1] for index in range(12)})
        await controller_of(small).create_topics([spec])
        await controller_of(small).create_topics([TopicSpec(name="lone", assignments={0: [9]})])
        await pass_time(small, FORMER_LEADER_KEPT_S)
        small.crash(9)
        await small.catch_up()
        await pass_time(small, 24 * 3600)
        small.flags = ("broker.rack=b",)
        await small.start(2)
        await settle(small)
        assert held(small) == {0: 12, 1: 8, 2: 4}  # the share is 8; two racks are kept apart
        assert awaiting(small) == []

    run(scenario())


# --- pages that cannot be read -------------------------------------------------------------------


async def with_a_bad_page(*elsewhere: list[int]) -> tuple[SmallCluster, bytes]:
    """Three brokers: the page of topic `bad` cannot be read, that of `t` can; what was on it."""
    small = SmallCluster()
    controller, *_ = await small.start(0, 1, 2)
    bad = TopicSpec(name="bad", assignments=dict(enumerate(elsewhere)))
    good = TopicSpec(name="t", assignments={index: [index % 2] for index in range(8)})
    await controller.create_topics([bad])
    await controller.create_topics([good])
    await pass_time(small, FORMER_LEADER_KEPT_S)
    paths = [page_path(page_of(controller.image.topics[one].topic_id)) for one in ("bad", "t")]
    assert paths[0] != paths[1]
    stored = small.server.get(paths[0])
    await small.put(paths[0], b"garbage")
    await small.catch_up()
    return small, stored.value


def test_a_broker_that_joins_gets_what_is_on_the_pages_that_can_be_read(run):
    async def scenario() -> None:
        small, _ = await with_a_bad_page(*[[0], [1]] * 4)
        await small.start(3)
        await settle(small)
        assert held(small)[3] == 4
        assert awaiting(small) == []

    run(scenario())


def test_a_page_that_can_be_read_again_gives_a_broker_the_rest_of_its_share(run):
    async def scenario() -> None:
        small, stored = await with_a_bad_page(*[[0], [1]] * 30)
        bad = controller_of(small).image.topics["bad"].topic_id
        await small.start(3)
        await settle(small)
        assert held(small) == {3: 8}
        assert awaiting(small) == [3]
        await small.mend(page_path(page_of(bad)), stored)
        await pass_time(small, BALANCE_AFTER_RETURN_S)
        moving = [one for one in controller_of(small).image.topics["bad"].partitions if one.adding]
        assert len(moving) == MOVES_PER_BROKER_MAX

    run(scenario())


def test_a_drained_broker_with_a_partition_on_a_bad_page_does_not_hold_up_the_shares(run):
    async def scenario() -> None:
        small, _ = await with_a_bad_page([2])
        await set_draining(controller_of(small), 2, value="true")
        await small.start(3)
        await settle(small)
        assert held(small)[3] == 2
        assert awaiting(small) == []

    run(scenario())
