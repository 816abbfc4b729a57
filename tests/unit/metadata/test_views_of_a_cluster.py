"""Views through the store: written, read by other brokers and after a restart, deleted."""

from __future__ import annotations

from tests.unit.metadata.small_cluster import SmallCluster
from tests.unit.metadata.three_brokers import three_brokers
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import PAGE_INFLATED_BYTES_MAX
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import ConfigChange, PartitionsSpec, TopicSpec

VIEW = {"tidemill.view.of": "t", "tidemill.view.filter": "a = 1"}


async def with_view() -> tuple[SmallCluster, list[Cluster]]:
    small, clusters = await three_brokers()
    (result,) = await clusters[0].create_topics([TopicSpec(name="v", overrides=VIEW)])
    assert result.code is ErrorCode.NONE, result.detail
    await small.catch_up()
    return small, clusters


def test_all_brokers_see_a_view_with_the_partitions_of_its_base(run):
    async def scenario() -> None:
        small, clusters = await with_view()
        for cluster in clusters:
            topics = cluster.image.topics
            assert topics["v"].partitions == topics["t"].partitions
            assert topics["v"].topic_id != topics["t"].topic_id
            assert cluster.image.views == {"t": ("v",)}
        assert small.stored_topics()["v"].partitions == ()
        assert not any(member.alarms for member in small.members.values())

    run(scenario())


def test_one_request_makes_a_topic_and_its_views_in_any_order(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        keys = {"tidemill.view.of": "base"}
        view, base = TopicSpec(name="a", overrides=keys), TopicSpec(name="base", partitions=3)
        results = await clusters[0].create_topics([view, base, TopicSpec(name="b", overrides=keys)])
        assert [one.name for one in results] == ["a", "base", "b"]
        assert [one.code for one in results] == [ErrorCode.NONE] * 3
        await small.catch_up()
        for cluster in clusters:
            topics = cluster.image.topics
            assert topics["a"].partitions == topics["b"].partitions == topics["base"].partitions
            assert len(topics["a"].partitions) == 3

    run(scenario())


def test_a_view_is_refused_with_the_base_that_its_request_was_to_make(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        view = TopicSpec(name="a", overrides={"tidemill.view.of": "base"})
        base = TopicSpec(name="base", replication_factor=99)
        results = await clusters[0].create_topics([base, view])
        assert [one.code for one in results] == [
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        large = "x" * PAGE_INFLATED_BYTES_MAX
        base = TopicSpec(name="base", overrides={"leader.replication.throttled.replicas": large})
        results = await clusters[0].create_topics([view, base])
        assert ErrorCode.NONE not in {one.code for one in results}
        await small.catch_up()
        assert set(clusters[0].image.topics) == {"t"}

    run(scenario())


def test_a_view_follows_the_leaders_and_the_growth_of_its_base(run):
    async def scenario() -> None:
        small, clusters = await with_view()
        await clusters[0].create_partitions([PartitionsSpec(name="t", count=2)])
        small.crash(1)
        await small.catch_up()
        for cluster in (clusters[0], clusters[2]):
            now = cluster.image.topics["v"]
            assert now.partitions == cluster.image.topics["t"].partitions
            assert now.partitions[0].leader == 2
            assert len(now.partitions) == 2

    run(scenario())


def test_a_broker_that_starts_later_reads_views(run):
    async def scenario() -> None:
        small, _ = await with_view()
        (late,) = await small.start(3)
        assert late.image.topics["v"].partitions == late.image.topics["t"].partitions

    run(scenario())


def test_a_base_with_views_is_deleted_with_them_or_not_at_all(run):
    async def scenario() -> None:
        small, clusters = await with_view()
        (refused,) = await clusters[0].delete_topics(["t"])
        assert refused.code is ErrorCode.POLICY_VIOLATION
        assert "v" in refused.detail
        results = await clusters[0].delete_topics(["t", "v"])
        assert [one.code for one in results] == [ErrorCode.NONE, ErrorCode.NONE]
        await small.catch_up()
        assert all(not cluster.image.topics for cluster in clusters)
        assert all(not cluster.image.views for cluster in clusters)

    run(scenario())


def test_a_changed_filter_is_stored(run):
    async def scenario() -> None:
        small, clusters = await with_view()
        change = ConfigChange(name="v", changes=[("tidemill.view.filter", AlterOp.SET, "b = 2")])
        (result,) = await clusters[0].alter_topic_configs([change])
        assert result.code is ErrorCode.NONE
        await small.catch_up()
        assert clusters[2].image.topics["v"].config.tidemill_view_filter == "b = 2"
        assert small.stored_topics()["v"].overrides["tidemill.view.filter"] == "b = 2"

    run(scenario())


def test_a_view_cannot_be_moved_and_follows_a_move_of_its_base(run):
    async def scenario() -> None:
        small, clusters = await with_view()
        t0, v0 = TopicPartition("t", 0), TopicPartition("v", 0)
        stored = small.stored_topics()["v"]
        refused, moved = await clusters[0].reassign({v0: [1, 2], t0: [1, 2]})
        assert refused is not None
        assert refused.detail == "v is a view: move the replicas of t"
        assert moved is None
        await small.catch_up()
        for cluster in clusters:
            base = cluster.image.topics["t"]
            assert base.partitions[0].removing == (0,)
            assert cluster.image.topics["v"].partitions == base.partitions
        assert small.stored_topics()["v"] == stored

    run(scenario())


def test_another_minimum_in_force_changes_nothing_of_a_view(run):
    async def scenario() -> None:
        small = SmallCluster("min.insync.replicas=1")
        controller, *_ = await small.start(0)
        small.flags = ("min.insync.replicas=2",)
        await small.start(1, 2)
        base = TopicSpec(name="t", assignments={0: [0, 1, 2]})
        await controller.create_topics([base])
        await controller.create_topics([TopicSpec(name="v", overrides=VIEW)])
        await small.catch_up()
        stored = small.stored_topics()["v"]
        small.crash(0)
        await small.catch_up()
        successor = small.members[1].cluster
        assert successor.is_controller
        assert successor.image.topics["t"].min_isr == 2
        assert successor.image.topics["v"].partitions == successor.image.topics["t"].partitions
        assert small.stored_topics()["v"] == stored

    run(scenario())


def test_the_logs_of_a_broker_are_those_of_the_base(run):
    async def scenario() -> None:
        _, clusters = await with_view()
        assert clusters[0].own_logs() == {(clusters[0].image.topics["t"].topic_id, 0)}

    run(scenario())
