from __future__ import annotations

import pytest

from tests.support.fake_cluster import HOST, FakeCluster
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.admin.topic_admin import Admin, ConfigEntry
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import BrokerUnreachable
from tidemill.client.network.offset_lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidemill.core.errors import KafkaError
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.records import Record, build_batch


def admin(cluster: FakeCluster) -> Admin:
    return Admin(ClusterClient(cluster.net, cluster.bootstrap))


def test_T21_a_topic_is_created_as_requested():
    async def scenario():
        cluster = FakeCluster()
        made = await admin(cluster).create_topic("t", partitions=3, configs={"retention.ms": "5"})
        return made.partitions, len(cluster.topics["t"].partitions), cluster.topics["t"].configs

    assert run_virtually(scenario()) == (3, 3, {"retention.ms": "5"})


def test_T21_counts_that_are_left_out_are_the_brokers_defaults():
    async def scenario():
        cluster = FakeCluster()
        return (await admin(cluster).create_topic("t")).partitions

    assert run_virtually(scenario()) == 4


def test_T21_validation_creates_nothing():
    async def scenario():
        cluster = FakeCluster()
        await admin(cluster).create_topic("t", partitions=1, validate_only=True)
        return list(cluster.topics)

    assert run_virtually(scenario()) == []


def test_T18_changes_go_to_the_controller():
    async def scenario():
        cluster = FakeCluster(brokers=3)
        cluster.controller_id = 3
        await admin(cluster).create_topic("t", partitions=1)
        return [ApiKey.CREATE_TOPICS in dict(b.requests) for b in cluster.brokers.values()]

    assert run_virtually(scenario()) == [False, False, True]


def test_T18_a_controller_that_moved_is_found_again():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        administering = admin(cluster)
        await administering.list_topics()
        cluster.controller_id = 2
        await administering.create_topic("t", partitions=1)
        return list(cluster.topics)

    assert run_virtually(scenario()) == ["t"]


def test_a_refusal_carries_the_brokers_message():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS: no"):
            await admin(cluster).create_topic("t", partitions=1)

    run_virtually(scenario())


def test_each_deletion_has_its_own_outcome_in_the_order_asked():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("b")
        return list((await admin(cluster).delete_topics(["absent", "b"])).items())

    (first, refusal), (second, no_refusal) = run_virtually(scenario())
    assert (first, str(refusal)) == ("absent", "UNKNOWN_TOPIC_OR_PARTITION: no such topic")
    assert (second, no_refusal) == ("b", None)


def test_topics_are_listed_by_name_without_deleted_ones():
    async def scenario():
        cluster = FakeCluster()
        for name in ("b", "a", "c"):
            cluster.add_topic(name)
        administering = admin(cluster)
        before = [topic.name for topic in await administering.list_topics()]
        del cluster.topics["b"]
        return before, [topic.name for topic in await administering.list_topics()]

    assert run_virtually(scenario()) == (["a", "b", "c"], ["a", "c"])


def test_partitions_can_be_added():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t", 1)
        await admin(cluster).create_partitions("t", 4)
        return len(cluster.topics["t"].partitions)

    assert run_virtually(scenario()) == 4


def test_configs_are_set_and_reset_and_show_their_source():
    async def scenario():
        cluster = FakeCluster()
        topic = cluster.add_topic("t")
        topic.configs = {"old.key": "1"}
        administering = admin(cluster)
        await administering.alter_configs("t", set_to={"new.key": "2"}, delete=["old.key"])
        return await administering.describe_configs("t")

    assert run_virtually(scenario()) == [
        ConfigEntry("new.key", "2", is_set=True, read_only=False),
        ConfigEntry("retention.ms", "1209600000", is_set=False, read_only=False),
    ]


def test_T39_offsets_are_listed_for_every_partition():
    async def scenario():
        cluster = FakeCluster(brokers=2)
        topic = cluster.add_topic("t", 2)
        topic.partitions[1].append(bytes(build_batch([Record(b"a"), Record(b"b")])))
        administering = admin(cluster)
        ends = await administering.list_offsets("t", LATEST_TIMESTAMP)
        starts = await administering.list_offsets("t", EARLIEST_TIMESTAMP)
        return [found.offset for found in (*ends.values(), *starts.values())]

    assert run_virtually(scenario()) == [0, 2, 0, 0]


def test_records_before_an_offset_are_deleted():
    async def scenario():
        cluster = FakeCluster()
        topic = cluster.add_topic("t", 2)
        starts = await admin(cluster).delete_records("t", {1: 7})
        return starts, topic.partitions[1].log_start_offset

    assert run_virtually(scenario()) == ({1: 7}, 7)


def test_the_second_bootstrap_address_serves_when_the_first_is_dead():
    async def scenario():
        cluster = FakeCluster()
        cluster.add_topic("t")
        connected = ClusterClient(cluster.net, [(HOST, 1), *cluster.bootstrap])
        return [topic.name for topic in await Admin(connected).list_topics()]

    assert run_virtually(scenario()) == ["t"]


def test_when_no_address_answers_all_of_them_are_named():
    async def scenario():
        connected = ClusterClient(FakeCluster().net, [(HOST, 1), (HOST, 2)])
        with pytest.raises(BrokerUnreachable, match=rf"{HOST}:1.*{HOST}:2"):
            await Admin(connected).list_topics()

    run_virtually(scenario())
