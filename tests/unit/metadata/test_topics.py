"""One broker alone: topics are made, changed and deleted, and read at once."""

from __future__ import annotations

from uuid import UUID

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.errors import ErrorCode
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.controller import page_writer
from tidemill.metadata.image import nodes
from tidemill.metadata.image.metadata_image import DeletedTopic, TopicImage
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import ConfigChange, PartitionsSpec, TopicSpec


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
