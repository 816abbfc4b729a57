"""One broker alone: topics, read-your-writes, restarts, and a store that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from tests.unit.metadata.small_cluster import Member, SmallCluster, count_of
from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable, UserError
from tidemill.core.rng import SeededRng
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.controller import page_writer
from tidemill.metadata.controller.controller import ConfigChange, PartitionsSpec, TopicSpec
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.metadata_image import DeletedTopic, TopicImage
from tidemill.metadata.image.page import page_of
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.store.coord import CoordConflict, Create, Delete, Node, Op, Put


def test_a_single_broker_registers_is_elected_and_knows_it(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        assert cluster.is_controller
        assert cluster.may_act
        assert cluster.image.controller_id == 0
        assert cluster.image.controller_epoch == 1
        broker = cluster.image.brokers[0]
        assert (broker.host, broker.port, count_of(broker.epoch)) == ("host-0", 9092, 1)
        assert len(cluster.image.cluster_id) == 22

    run(scenario())


def test_the_cluster_id_is_known_before_joining_and_stays(run):
    async def scenario() -> None:
        small = SmallCluster()
        coord = small.server.session()
        first = Cluster(coord, broker_config(), SeededRng(1), clock=small.clock)
        cluster_id = await first.identify()
        assert cluster_id
        assert not first.image.brokers
        await first.start(Endpoint("h", 1), unclean=False)
        assert first.image.cluster_id == cluster_id
        (second,) = await small.start(1)
        assert second.image.cluster_id == cluster_id

    run(scenario())


def test_T22_a_created_topic_is_in_the_image_before_the_call_returns(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (result,) = await cluster.create_topics([TopicSpec(name="t", partitions=3)])
        assert result.code is ErrorCode.NONE
        assert result.topic is cluster.image.topic("t")
        assert cluster.image.topic_by_id(result.topic_id) is result.topic
        partition = cluster.image.partition("t", 2)
        assert partition is not None
        assert (partition.leader, partition.leader_epoch, partition.isr) == (0, 0, (0,))
        assert small.members[0].deltas[-1].topics_changed == ("t",)

    run(scenario())


def test_T21_results_come_in_the_order_of_the_request_each_with_its_own_error(run):
    async def scenario() -> None:
        (cluster,) = await SmallCluster().start(0)
        await cluster.create_topics([TopicSpec(name="old")])
        results = await cluster.create_topics(
            [
                TopicSpec(name="new"),
                TopicSpec(name="old"),
                TopicSpec(name="no/name"),
                TopicSpec(name="twice"),
                TopicSpec(name="twice"),
            ]
        )
        assert [(one.name, one.code) for one in results] == [
            ("new", ErrorCode.NONE),
            ("old", ErrorCode.TOPIC_ALREADY_EXISTS),
            ("no/name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("twice", ErrorCode.INVALID_REQUEST),
            ("twice", ErrorCode.INVALID_REQUEST),
        ]
        assert sorted(cluster.image.topics) == ["new", "old"]

    run(scenario())


def test_T21_validate_only_creates_nothing(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        before = small.server.scan("/")
        (result,) = await cluster.create_topics([TopicSpec(name="t")], validate_only=True)
        assert result.code is ErrorCode.NONE
        assert result.topic is not None
        assert len(result.topic.partitions) == 4
        assert small.server.scan("/") == before
        assert not cluster.image.topics

    run(scenario())


def test_a_change_that_is_too_long_for_one_multi_is_written_in_several(run, monkeypatch):
    async def scenario() -> None:
        monkeypatch.setattr(page_writer, "COORD_MULTI_BYTES_MAX", 20_000)
        small = SmallCluster()
        (cluster,) = await small.start(0)
        before = small.server.get(nodes.HEAD)
        specs = [TopicSpec(name=f"t{number}", partitions=100) for number in range(30)]
        results = await cluster.create_topics(specs)
        assert {one.code for one in results} == {ErrorCode.NONE}
        after = small.server.get(nodes.HEAD)
        assert before is not None
        assert after is not None
        assert after.version - before.version > 2
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics)
        assert (await reread(small, cluster)) == cluster.image.topics

    run(scenario())


async def reread(small: SmallCluster, cluster: Cluster) -> dict[str, TopicImage]:
    """The topics after everything was read again; nothing may have changed by that."""
    topics, seen = dict(cluster.image.topics), len(small.members[0].deltas)
    small.server.suspend(small.members[0].coord)
    small.server.resume(small.members[0].coord)
    await small.catch_up()
    assert len(small.members[0].deltas) == seen
    return topics


def test_a_topic_that_its_page_has_no_room_for_is_refused_and_the_others_are_made(run, monkeypatch):
    async def scenario() -> None:
        monkeypatch.setattr(page_writer, "PAGE_INFLATED_BYTES_MAX", 20_000)
        small = SmallCluster()
        (cluster,) = await small.start(0)
        results = await cluster.create_topics(
            [TopicSpec(name="large", partitions=1_000), TopicSpec(name="small", partitions=1)]
        )
        assert [one.code for one in results] == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
        assert results[0].topic is None
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics) == ["small"]
        (grown,) = await cluster.create_partitions([PartitionsSpec(name="small", count=1_000)])
        assert grown.code is ErrorCode.POLICY_VIOLATION
        assert len(cluster.image.topics["small"].partitions) == 1

    run(scenario())


def test_I34_a_deleted_topic_leaves_nothing_in_its_page_and_its_successor_has_another_id(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (first,) = await cluster.create_topics([TopicSpec(name="t")])
        (deleted,) = await cluster.delete_topics(["t"])
        assert deleted.code is ErrorCode.NONE
        assert cluster.image.topic("t") is None
        assert small.members[0].deltas[-1].topics_deleted == (DeletedTopic("t", first.topic_id),)
        assert small.stored_topics() == {}
        (second,) = await cluster.create_topics([TopicSpec(name="t")])
        assert second.topic_id != first.topic_id

    run(scenario())


def test_topics_are_deleted_by_id_and_unknown_ones_refused(run):
    async def scenario() -> None:
        (cluster,) = await SmallCluster().start(0)
        (made,) = await cluster.create_topics([TopicSpec(name="t")])
        results = await cluster.delete_topics([made.topic_id, UUID(int=1), "u"])
        assert [(one.name, one.code) for one in results] == [
            ("t", ErrorCode.NONE),
            ("", ErrorCode.UNKNOWN_TOPIC_ID),
            ("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]

    run(scenario())


def test_T22_partitions_and_keys_change_before_the_call_returns(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        (grown,) = await cluster.create_partitions([PartitionsSpec(name="t", count=3)])
        assert grown.code is ErrorCode.NONE
        change = ConfigChange(name="t", changes=[("retention.ms", AlterOp.SET, "5")])
        (altered,) = await cluster.alter_topic_configs([change])
        assert altered.code is ErrorCode.NONE
        topic = cluster.image.topics["t"]
        assert (len(topic.partitions), topic.config.retention_ms) == (3, 5)
        # The image equals the store: reading everything again changes nothing.
        seen = len(small.members[0].deltas)
        small.server.suspend(small.members[0].coord)
        small.server.resume(small.members[0].coord)
        await small.catch_up()
        assert len(small.members[0].deltas) == seen
        assert cluster.image.topics["t"] == topic

    run(scenario())


def test_validate_only_changes_no_partitions_and_no_keys(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        before = small.server.scan("/")
        change = ConfigChange(name="t", changes=[("retention.ms", AlterOp.SET, "5")])
        await cluster.create_partitions([PartitionsSpec(name="t", count=3)], validate_only=True)
        await cluster.alter_topic_configs([change], validate_only=True)
        assert small.server.scan("/") == before

    run(scenario())


def test_F96_a_clean_restart_keeps_topics_and_leader_epochs(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", overrides={"segment.ms": "9"})])
        topic = cluster.image.topics["t"]
        await cluster.close()
        (again,) = await small.start(0)
        assert again.image.topics["t"] == topic
        assert count_of(again.broker_epoch) == 2
        assert again.image.controller_epoch == 2

    run(scenario())


def test_I14_an_unclean_start_takes_a_new_leader_epoch_before_it_serves(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", partitions=600)])
        small.crash(0)
        (again,) = await small.start(0, unclean=True)
        partitions = again.image.topics["t"].partitions
        assert {(one.leader, one.leader_epoch, one.isr) for one in partitions} == {(0, 1, (0,))}

    run(scenario())


def test_producer_ids_are_given_out_once(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        first = await cluster.reserve_producer_ids()
        second = await cluster.reserve_producer_ids(10)
        assert (first, second) == (range(0, 1000), range(1000, 1010))
        small.crash(0)
        (again,) = await small.start(0)
        assert (await again.reserve_producer_ids(1)) == range(1010, 1011)

    run(scenario())


def test_a_suspended_session_may_not_act(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        small.server.suspend(small.members[0].coord)
        assert not cluster.may_act
        assert not cluster.is_controller
        with pytest.raises(KafkaError) as refused:
            await cluster.create_topics([TopicSpec(name="t")])
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        small.server.resume(small.members[0].coord)
        await small.catch_up()
        assert cluster.is_controller

    run(scenario())


def test_a_broker_whose_session_was_lost_joins_again_in_a_new_epoch(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        small.server.expire(small.members[0].coord)
        assert not cluster.may_act
        await small.catch_up()
        assert cluster.is_controller
        assert count_of(cluster.broker_epoch) == 2
        assert cluster.image.topics["t"].partitions[0].leader == 0

    run(scenario())


def test_a_new_session_may_not_act_before_the_broker_is_registered_in_it(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        small.server.expire(small.members[0].coord)
        await small.members[0].coord.start()
        assert not cluster.may_act

    run(scenario())


class LostAnswers:
    """A session whose next multis have an unknown outcome: each is done or not, as `done` says."""

    def __init__(self, member: Member, done: Sequence[bool], monkeypatch) -> None:
        self._whole = member.coord.multi
        self._done = list(done)
        monkeypatch.setattr(member.coord, "multi", self.multi)

    async def multi(self, ops: Sequence[Op]) -> None:
        if not self._done:
            await self._whole(ops)
        else:
            if self._done.pop(0):
                await self._whole(ops)
            raise StoreUnavailable("no answer")


@pytest.mark.parametrize("done", [[True], [False]])
def test_a_write_whose_outcome_is_unknown_is_settled_and_made_exactly_once(run, monkeypatch, done):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        LostAnswers(small.members[0], done, monkeypatch)
        (made,) = await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        assert made.code is ErrorCode.NONE
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics) == ["t"]

    run(scenario())


@pytest.mark.parametrize("done", [[True, True], [False, True], [False, False]])
def test_a_write_whose_outcome_stays_unknown_is_found_or_never_made(run, monkeypatch, done):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        coord, whole_get = small.members[0].coord, small.members[0].coord.get
        lost_gets = 1 if done[0] else 0

        async def lost_get(path: str, newest: bool = False) -> Node | None:
            nonlocal lost_gets
            if lost_gets:
                lost_gets -= 1
                raise StoreUnavailable("no answer")
            return await whole_get(path, newest)

        LostAnswers(small.members[0], done[:1] if done[0] else done, monkeypatch)
        monkeypatch.setattr(coord, "get", lost_get)
        with pytest.raises(StoreUnavailable):
            await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        assert "t" not in cluster.image.topics
        await cluster.create_topics([TopicSpec(name="u", partitions=1)])
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics)
        assert ("t" in cluster.image.topics) == any(done)

    run(scenario())


def test_a_write_that_nobody_waits_for_any_more_cannot_come_late(run, monkeypatch):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        coord = small.members[0].coord
        whole_multi, whole_get = coord.multi, coord.get
        late: list[Sequence[Op]] = []

        async def lost_multi(ops: Sequence[Op]) -> None:
            late.append(ops)
            raise StoreUnavailable("no answer")

        async def lost_get(path: str, newest: bool = False) -> Node | None:
            raise StoreUnavailable("no answer")

        monkeypatch.setattr(coord, "multi", lost_multi)
        monkeypatch.setattr(coord, "get", lost_get)
        with pytest.raises(StoreUnavailable):
            await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        monkeypatch.setattr(coord, "multi", whole_multi)
        monkeypatch.setattr(coord, "get", whole_get)
        await cluster.create_topics([TopicSpec(name="u", partitions=1)])
        with pytest.raises(CoordConflict):
            await whole_multi(late[0])
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics) == ["u"]

    run(scenario())


def test_run_follows_the_store_until_cancelled(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (other,) = await small.start(1)
        seen = asyncio.Event()
        cluster.subscribe(lambda delta: seen.set() if delta.after.brokers.keys() == {0} else None)
        loop = asyncio.create_task(cluster.run())
        await other.close()
        await seen.wait()
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    run(scenario())


def test_run_tries_again_after_the_store_failed(run, monkeypatch):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (other,) = await small.start(1)
        coord = small.members[0].coord
        whole_children = coord.children

        async def failing_children(path: str) -> list[tuple[str, Node]]:
            monkeypatch.setattr(coord, "children", whole_children)
            raise StoreUnavailable("disk trouble")

        monkeypatch.setattr(coord, "children", failing_children)
        monkeypatch.setattr("tidemill.metadata.cluster._RETRY_AFTER_S", 0)
        seen = asyncio.Event()
        cluster.subscribe(lambda delta: seen.set() if delta.after.brokers.keys() == {0} else None)
        loop = asyncio.create_task(cluster.run())
        await other.close()
        await seen.wait()
        loop.cancel()
        assert small.members[0].alarms == ["metadata: disk trouble"]
        await asyncio.wait([loop])

    run(scenario())


# --- nodes that another program wrote ---


def test_S46_the_topics_of_a_bad_page_stay_as_they_were_known_and_are_not_written(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (made,) = await cluster.create_topics([TopicSpec(name="t")])
        before = cluster.image.topics["t"]
        path = page_path(page_of(made.topic_id))
        await small.put(path, b"\xff garbage")
        await small.catch_up()
        assert cluster.image.topics["t"] == before
        assert any(path in alarm for alarm in small.members[0].alarms)
        assert cluster.own_logs() is None
        (deleted,) = await cluster.delete_topics(["t"])
        assert deleted.code is ErrorCode.KAFKA_STORAGE_ERROR
        node = small.server.get(path)
        assert node is not None
        assert node.value == b"\xff garbage"

    run(scenario())


def test_S46_a_broker_that_starts_with_a_bad_page_serves_the_topics_of_the_others(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        made = await cluster.create_topics([TopicSpec(name=f"t{n}") for n in range(20)])
        bad = page_of(made[0].topic_id)
        await small.put(page_path(bad), b"[]")
        small.crash(0)
        (again,) = await small.start(0, unclean=True)
        good = {one.name for one in made if page_of(one.topic_id) != bad}
        assert good == again.image.topics.keys()
        assert again.own_logs() is None
        assert {one.leader_epoch for one in again.image.topics[max(good)].partitions} == {1}
        node = small.server.get(page_path(bad))
        assert node is not None
        assert node.value == b"[]"

    run(scenario())


def test_S46_I34_no_topic_is_made_while_a_bad_page_may_have_its_name(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (made,) = await cluster.create_topics([TopicSpec(name="t")])
        path = page_path(page_of(made.topic_id))
        node = small.server.get(path)
        assert node is not None
        await small.put(path, b"[]")
        small.crash(0)
        (again,) = await small.start(0, unclean=True)
        refused = await again.create_topics([TopicSpec(name="t"), TopicSpec(name="other")])
        assert {one.code for one in refused} == {ErrorCode.KAFKA_STORAGE_ERROR}
        await small.put(path, node.value)
        await small.catch_up()
        assert again.own_logs() == {
            (made.topic_id, index) for index in range(len(made.topic.partitions))
        }
        (other,) = await again.create_topics([TopicSpec(name="other")])
        assert other.code is ErrorCode.NONE

    run(scenario())


def test_S46_a_page_that_was_mended_is_read_again(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (made,) = await cluster.create_topics([TopicSpec(name="t")])
        path = page_path(page_of(made.topic_id))
        node = small.server.get(path)
        assert node is not None
        await small.put(path, b"[]")
        await small.catch_up()
        await small.put(path, node.value)
        await small.catch_up()
        assert cluster.own_logs() == {
            (made.topic_id, index) for index in range(len(made.topic.partitions))
        }
        (deleted,) = await cluster.delete_topics(["t"])
        assert deleted.code is ErrorCode.NONE

    run(scenario())


@pytest.mark.parametrize("value", [b"?", b"[]", b'{"v":1,"seq":1}'])
def test_S46_a_bad_head_changes_nothing_and_is_said(run, value):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t")])
        node = small.server.get(nodes.HEAD)
        assert node is not None
        await small.members[0].coord.multi([Put(nodes.HEAD, value, node.version)])
        with pytest.raises(StoreUnavailable, match="/head"):
            await small.catch_up()
        assert "t" in cluster.image.topics

    run(scenario())


def test_S46_a_key_that_this_version_does_not_know_neither_hides_its_topic_nor_gets_lost(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        stored = small.stored_topics()["t"]
        keys = {"future.key": "1", "segment.ms": "9"}
        await small.put_topic(stored._replace(overrides=keys))
        await small.catch_up()
        assert cluster.image.topics["t"].overrides == {"segment.ms": "9"}
        assert any("future.key" in alarm for alarm in small.members[0].alarms)
        await cluster.create_partitions([PartitionsSpec(name="t", count=2)])
        assert small.stored_topics()["t"].overrides == keys

    run(scenario())


def test_S46_a_bad_broker_or_controller_node_changes_nothing(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster, _) = await small.start(0, 1)
        member = small.members[0]
        await member.coord.multi(
            [
                Put("/brokers/1", b"?", 0),
                Create("/brokers/zero", b"{}"),
                Put(nodes.CONTROLLER, b"?", 0),
            ]
        )
        await small.catch_up()
        assert sorted(cluster.image.brokers) == [0, 1]
        assert cluster.is_controller
        assert len(member.alarms) >= 3

    run(scenario())


def test_a_store_without_a_usable_cluster_id_is_refused(run):
    async def scenario() -> None:
        small = SmallCluster()
        coord = small.server.session()
        await coord.start()
        await coord.multi([Create(nodes.CLUSTER, b"?")])
        with pytest.raises(UserError, match="coordination store cannot be used"):
            await small.start(0)

    run(scenario())


def test_unreadable_producer_ids_are_not_guessed(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await small.members[0].coord.multi([Put(nodes.PRODUCER_IDS, b"?", 0)])
        with pytest.raises(StoreUnavailable):
            await cluster.reserve_producer_ids()
        await small.members[0].coord.multi([Delete(nodes.PRODUCER_IDS, 1)])
        with pytest.raises(StoreUnavailable):
            await cluster.reserve_producer_ids()

    run(scenario())


def test_two_brokers_with_one_id_cannot_both_join(run):
    async def scenario() -> None:
        small = SmallCluster()
        await small.start(0)
        with pytest.raises(UserError, match=r"node\.id=0: another broker has this id"):
            await small.start(0)

    run(scenario())
