"""One broker alone, and a store in which another program has written."""

from __future__ import annotations

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.errors import ErrorCode, StoreUnavailable, UserError
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.metadata.image.page import page_of
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import ConfigChange, PartitionsSpec, TopicSpec
from tidemill.metadata.store.coord import Create, Delete, Put


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
        await small.mend(path, node.value)
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
        await small.mend(path, node.value)
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


@pytest.mark.parametrize("text", ["compact", None])
def test_S46_a_key_that_was_set_anew_has_the_new_value_on_every_broker(run, text):
    """Another version has stored a value for it that this one does not know."""

    async def scenario() -> None:
        small = SmallCluster()
        clusters = await small.start(0, 1)
        await clusters[0].create_topics([TopicSpec(name="t", partitions=1)])
        stored = small.stored_topics()["t"]
        await small.put_topic(stored._replace(overrides={"cleanup.policy": "shrink"}))
        await small.catch_up()
        op = AlterOp.DELETE if text is None else AlterOp.SET
        wanted = ConfigChange(name="t", changes=[("cleanup.policy", op, text)])
        (result,) = await clusters[0].alter_topic_configs([wanted])
        assert result.code is ErrorCode.NONE
        await small.catch_up()
        keys = {} if text is None else {"cleanup.policy": text}
        assert small.stored_topics()["t"].overrides == keys
        assert [one.image.topics["t"].overrides for one in clusters] == [keys, keys]

    run(scenario())


def test_S46_I28_an_internal_topic_is_mended_on_every_broker(run):
    """Its leader would delete committed offsets by their age."""

    async def scenario() -> None:
        small = SmallCluster()
        clusters = await small.start(0, 1)
        await clusters[0].create_topics([TopicSpec(name=OFFSETS_TOPIC, by_coordinator=True)])
        stored = small.stored_topics()[OFFSETS_TOPIC]
        keys = {**stored.overrides, "cleanup.policy": "shrink"}
        await small.put_topic(stored._replace(overrides=keys))
        await small.catch_up()
        assert all(one.image.topics[OFFSETS_TOPIC].config.compacts for one in clusters)

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
