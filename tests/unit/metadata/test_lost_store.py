"""A store that forgets: emptied, replaced or put back from an old copy while brokers know more."""

from __future__ import annotations

import shutil

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.broker.data_plane import LOGS_DIRECTORY
from tidemill.core.config.broker_config import broker_config
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.core.rng import SeededRng
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.controller.page_writer import CAS_ATTEMPTS_MAX
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import HEAD, Head
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.metadata.store.coord import CoordConflict, Delete, Put
from tidemill.metadata.store.memory_store import MemoryCoordServer
from tidemill.storage.directory.metadata_note import NOTE_NAME
from tidemill.testing.in_process_cluster import InProcessCluster
from tidemill.testing.manual_clock import ManualClock

ORDERS = [TopicSpec(name="orders", partitions=1)]


async def one_broker() -> SmallCluster:
    """A broker that is the controller of a cluster with a topic."""
    small = SmallCluster()
    (cluster,) = await small.start(0)
    await cluster.create_topics(ORDERS)
    return small


def put_head(server: MemoryCoordServer, head: Head) -> None:
    node = server.get(HEAD)
    assert node is not None
    server.multi(server.session(), [Put(HEAD, head.encode(), node.version)])


def test_a_broker_that_comes_back_to_an_empty_store_founds_no_cluster(run):
    async def scenario() -> None:
        small = await one_broker()
        member = small.members[0]
        node = small.server.get(nodes.CLUSTER)
        small.server.expire(member.coord)
        small.server.multi(small.server.session(), [Delete(nodes.CLUSTER, node.version)])
        with pytest.raises(UserError, match="the coordination store has no cluster, this broker"):
            await member.cluster.catch_up()
        assert small.server.get(nodes.CLUSTER) is None
        assert "orders" in member.cluster.image.topics

    run(scenario())


def test_nor_does_one_that_is_started_with_the_logs_of_a_cluster(run):
    async def scenario() -> None:
        coord = MemoryCoordServer().session()
        config = broker_config(flags=["node.id=0", "data.dir=/var/tm"])
        cluster = Cluster(coord, config, SeededRng(0), clock=ManualClock())
        line = (
            "has no cluster, this broker belongs to cluster abc: if /var/tm/coord.db is the right"
        )
        with pytest.raises(UserError, match=line):
            await cluster.identify("abc")
        assert await coord.get(nodes.CLUSTER) is None
        assert await cluster.identify()

    run(scenario())


def test_a_broker_without_logs_begins_anew_whatever_its_directory_has_noted(run, tmp_path):
    async def scenario() -> None:
        for _ in range(2):
            async with InProcessCluster(str(tmp_path), brokers=1):
                pass
            assert (tmp_path / "broker-0" / NOTE_NAME).exists()
            shutil.rmtree(tmp_path / "broker-0" / LOGS_DIRECTORY)

    run(scenario())


def test_the_note_of_a_former_cluster_does_not_count_after_a_crash_either(run, tmp_path):
    async def scenario() -> None:
        async with InProcessCluster(str(tmp_path), brokers=1) as former:
            await former.broker(0).cluster.create_topics(ORDERS)
        shutil.rmtree(tmp_path / "broker-0" / LOGS_DIRECTORY)
        async with InProcessCluster(str(tmp_path), brokers=1) as anew:
            await anew.kill(0)  # before it has noted anything
            await anew.start_broker(0)

    run(scenario())


def test_a_broker_that_comes_back_to_the_store_of_another_cluster_stops(run):
    async def scenario() -> None:
        small = await one_broker()
        member = small.members[0]
        node = small.server.get(nodes.CLUSTER)
        small.server.expire(member.coord)
        other = Put(nodes.CLUSTER, nodes.encode_cluster_id("another"), node.version)
        small.server.multi(small.server.session(), [other])
        with pytest.raises(UserError, match="has cluster another, this broker belongs to"):
            await member.cluster.catch_up()
        assert "orders" in member.cluster.image.topics

    run(scenario())


def test_a_broker_that_comes_back_to_an_old_copy_of_the_store_stops(run):
    async def scenario() -> None:
        small = await one_broker()
        member = small.members[0]
        small.server.expire(member.coord)
        put_head(small.server, Head(epoch=1, seq=0))
        with pytest.raises(UserError, match="an old copy of it was put back"):
            await member.cluster.catch_up()
        assert small.server.children(nodes.BROKERS) == []

    run(scenario())


def test_a_broker_that_has_seen_a_newer_store_in_an_earlier_life_does_not_register(run):
    async def scenario() -> None:
        small = await one_broker()
        first = small.members[0].cluster
        epoch, seq = first.version
        await first.close()
        await small.register(1)  # one that has seen nothing may start
        with pytest.raises(UserError, match=rf"this broker has seen {epoch + 9}\.{seq}"):
            await small.register(2, seen=(epoch + 9, seq))
        assert small.server.get(nodes.broker_path(2)) is None

    run(scenario())


def test_a_controller_whose_writes_always_conflict_pauses(run):
    async def scenario() -> None:
        small = await one_broker()
        await small.register(1)
        conflicts = 0

        async def conflicting(ops: list[object]) -> None:
            nonlocal conflicts
            conflicts += 1
            raise CoordConflict(HEAD, "another version")

        small.members[0].coord.multi = conflicting  # type: ignore[assignment, method-assign]
        with pytest.raises(StoreUnavailable, match="changes too fast"):
            await small.members[0].cluster.catch_up()
        assert conflicts <= CAS_ATTEMPTS_MAX

    run(scenario())
