"""S46: brokers beside nodes that another program has damaged do not decide again and again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.pacing import next_turn
from tidemill.core.loop.steps import finished
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.image_keeper import ALL
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.image.overrides import ALL_BROKERS, DRAINING
from tidemill.metadata.image.page import page_of, page_value
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.metadata.store.coord import Create, Delete, Node, Put
from tidemill.metadata.store.memory_store import MemoryCoord

READS_MAX = 500
"""More than any of these stories needs: beyond it somebody reads the same again and again."""


@pytest.fixture(autouse=True)
def _bounded_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    get = MemoryCoord.get

    async def counted(self: MemoryCoord, path: str, newest: bool = False) -> Node | None:
        nonlocal reads
        reads += 1
        assert reads <= READS_MAX, "a broker reads the same again and again"
        return await get(self, path, newest)

    monkeypatch.setattr(MemoryCoord, "get", counted)


async def two_brokers() -> tuple[SmallCluster, Cluster]:
    """Broker 0 is the controller; broker 1 leads `alone` without and `t` with another replica."""
    small = SmallCluster()
    cluster, _ = await small.start(0, 1)
    await cluster.create_topics(
        [
            TopicSpec(name="alone", assignments={0: [1]}),
            TopicSpec(name="t", assignments={0: [1, 0]}),
        ]
    )
    await small.catch_up()
    return small, cluster


def partition(cluster: Cluster, name: str = "t") -> PartitionImage:
    return cluster.image.topics[name].partitions[0]


# --- who was let in ------------------------------------------------------------------------------


@pytest.mark.parametrize("unclean", [False, True])
def test_S46_a_return_has_no_effect_while_the_members_cannot_be_written(run, unclean):
    async def scenario() -> None:
        small, cluster = await two_brokers()
        await small.put(nodes.MEMBERS, b"?")
        small.crash(1)
        await small.catch_up()
        assert partition(cluster).leader == 0
        before = partition(cluster, "alone")
        await small.start(1, unclean=unclean)
        assert partition(cluster, "alone") == before
        assert not small.members[1].cluster.may_act

    run(scenario())


def test_S46_a_return_counts_when_the_members_can_be_read_again(run):
    async def scenario() -> None:
        small, cluster = await two_brokers()
        node = small.server.get(nodes.MEMBERS)
        assert node is not None
        await small.put(nodes.MEMBERS, b"?")
        small.crash(1)
        await small.start(1, unclean=True)
        await small.mend(nodes.MEMBERS, node.value)
        await small.catch_up()
        assert partition(cluster, "alone").leader == 1
        assert small.members[1].cluster.may_act

    run(scenario())


def test_S46_a_controller_that_never_knew_the_members_counts_nobody_as_dead(run):
    async def scenario() -> None:
        small, cluster = await two_brokers()
        before = partition(cluster)
        await small.put(nodes.MEMBERS, b"?")
        small.crash(0)
        small.crash(1)
        (again,) = await small.start(0)
        assert again.is_controller
        assert partition(again) == before

    run(scenario())


# --- who is the controller -----------------------------------------------------------------------


def test_S46_nobody_campaigns_beside_a_controller_that_cannot_be_read(run):
    async def scenario() -> None:
        small, _ = await two_brokers()
        small.crash(0)
        small.crash(1)
        other = small.server.session()
        await other.start()
        await other.multi([Create(nodes.CONTROLLER, b"?")])
        (again,) = await small.start(0)
        assert not again.is_controller
        await other.multi([Delete(nodes.CONTROLLER, 0)])
        await small.catch_up()
        assert again.is_controller

    run(scenario())


def test_S46_a_controller_whose_epoch_is_gone_steps_down_and_says_why(run):
    async def scenario() -> None:
        small, cluster = await two_brokers()
        member = small.members[0]
        node = small.server.get(nodes.CONTROLLER_EPOCH)
        assert node is not None
        await member.coord.multi([Delete(nodes.CONTROLLER_EPOCH, node.version)])
        small.crash(1)
        cluster._keeper.mark(nodes.CONTROLLER)
        await small.catch_up()
        assert not cluster.is_controller
        assert any(nodes.CONTROLLER_EPOCH in alarm for alarm in member.alarms)

    run(scenario())


# --- parts that were mended ----------------------------------------------------------------------


def test_S46_a_page_that_was_mended_in_its_place_is_read_before_the_next_change(run):
    async def scenario() -> None:
        small, cluster = await two_brokers()
        path = page_path(page_of(cluster.image.topics["t"].topic_id))
        good = small.server.get(path)
        assert good is not None
        other = small.server.session()
        await other.start()
        await other.multi([Put(path, b"?", good.version)])
        small.crash(0)
        small.crash(1)
        (again, reader) = await small.start(2, 3)
        for _ in range(3):
            (refused,) = await again.create_topics([TopicSpec(name="new", partitions=1)])
            assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert sum(path in alarm for alarm in small.members[2].alarms) == 1
        await other.multi([Put(path, good.value, good.version + 1)])
        (made,) = await again.create_topics([TopicSpec(name="new", partitions=1)])
        assert made.code is ErrorCode.NONE
        await small.catch_up()
        assert {"t", "new"} <= reader.image.topics.keys()
        assert again.own_logs() is not None

    run(scenario())


# --- pages that were put back --------------------------------------------------------------------


async def with_an_old_page() -> tuple[SmallCluster, str]:
    """The page of `t` is that from before broker 1 ended."""
    small, cluster = await two_brokers()
    page = page_of(cluster.image.topics["t"].topic_id)
    old = small.server.get(page_path(page))
    assert old is not None
    small.crash(1)
    await small.catch_up()
    assert partition(cluster).leader_epoch == 1
    await small.put_back(page_path(page), old.value)
    return small, page_path(page)


def test_S46_I11_a_page_that_is_older_than_what_is_known_changes_nothing(run):
    async def scenario() -> None:
        small, path = await with_an_old_page()
        cluster = small.members[0].cluster
        now, seen = partition(cluster), len(small.members[0].deltas)
        cluster._keeper.mark(ALL)
        await small.catch_up()
        assert all("t" not in one.topics_changed for one in small.members[0].deltas[seen:])
        assert partition(cluster) == now
        assert any(path in alarm for alarm in small.members[0].alarms)

    run(scenario())


def test_S46_I11_nobody_leads_by_a_page_that_was_old_at_its_start(run):
    async def scenario() -> None:
        small, path = await with_an_old_page()
        small.crash(0)
        (again, other) = await small.start(2, 0)
        assert "t" not in again.image.topics
        assert again.own_logs() is None
        assert other.own_logs() is None
        assert any(path in alarm for alarm in small.members[2].alarms)
        (refused,) = await again.create_topics([TopicSpec(name="t", partitions=1)])
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR

    run(scenario())


def test_I34_a_topic_that_an_old_page_lacks_is_not_deleted(run):
    async def scenario() -> None:
        small, cluster = await two_brokers()
        path = page_path(page_of(cluster.image.topics["t"].topic_id))
        empty = stored_fields.dump(finished(page_value(1, [])))
        await small.put_back(path, empty)
        cluster._keeper.mark(ALL)
        await small.catch_up()
        assert "t" in cluster.image.topics
        assert cluster.own_logs() is None

    run(scenario())


@pytest.mark.parametrize("part", [nodes.MEMBERS, nodes.SETTINGS])
def test_S46_members_and_settings_that_were_put_back_change_nothing(run, part):
    async def scenario() -> None:
        small, cluster = await two_brokers()
        old = small.server.get(part)
        assert old is not None
        await small.start(2)
        change = OverrideChange(owner=ALL_BROKERS, changes=[(DRAINING, AlterOp.SET, "true")])
        await cluster.alter_overrides([change])
        await small.catch_up()
        image = cluster.image
        await small.put_back(part, old.value)
        cluster._keeper.mark(ALL)
        await small.catch_up()
        assert (cluster.image.members, cluster.image.overrides) == (image.members, image.overrides)
        assert any(part in alarm for alarm in small.members[0].alarms)
        assert not cluster._keeper.is_readable(part)

    run(scenario())


def test_I34_a_request_that_is_cancelled_while_mended_pages_are_read_hides_no_topic(run):
    """Otherwise the page is written without the topic, and its logs are deleted."""

    async def scenario() -> None:
        small, cluster = await two_brokers()
        paths = {page_path(page_of(cluster.image.topics[one].topic_id)) for one in ("alone", "t")}
        good = {path: node.value for path, node in small.server.scan("/pages/") if path in paths}
        for path in paths:
            await small.put_back(path, b"?")
        small.crash(0)
        small.crash(1)
        (again,) = await small.start(2)
        for path in paths:
            await small.put_back(path, good[path])
        creation = asyncio.ensure_future(again.create_topics([TopicSpec(name="u", partitions=1)]))
        while len(again._keeper.unread_pages) == len(paths):
            await next_turn()
        creation.cancel()
        with suppress(asyncio.CancelledError):
            await creation
        specs = [TopicSpec(name=one, partitions=1) for one in ("alone", "t")]
        results = await again.create_topics(specs)
        assert {one.code for one in results} == {ErrorCode.TOPIC_ALREADY_EXISTS}

    run(scenario())
