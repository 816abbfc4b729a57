"""Readers in the rack of a follower (KIP-392): it serves them, and its death costs them nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.e2e.commands import printed_by
from tests.e2e.load import Load, Tail
from tests.support.clients import DEADLINE_S, Confluent, KafkaPython, Message, kafka
from tests.support.waiting import wait_for_brokers, wait_until
from tidemill.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RACKS = ["a", "b", "c"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    made = ClusterProcess(
        tmp_path / "data",
        "replica.selector.class=rack",
        "metrics.listen=127.0.0.1:0",
        options=["--racks", ",".join(RACKS)],
    )
    yield made.start()
    made.stop()


def create(cluster: ClusterProcess, topic: str) -> list[int]:
    """The replicas of a new partition, the leader first, when all are in sync."""
    wait_for_brokers(cluster.bootstrap, set(range(len(RACKS))))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (made,) = admin.create_topics([NewTopic(topic, 1, 3)]).values()
    made.result(DEADLINE_S)
    found: dict[int, Any] = {}

    def are_in_sync() -> bool:
        found.update(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
        return bool(found) and len(found[0].isrs) == len(RACKS)

    wait_until(are_in_sync, f"the replicas of {topic} do not get in sync")
    leader = found[0].leader
    return [leader, *(one for one in found[0].replicas if one != leader)]


def served_bytes(cluster: ClusterProcess, broker_id: int) -> int:
    """What a broker has found for readers in partitions that others lead."""
    pattern = rf"^\[broker {broker_id}\] .*metrics on http://(\S+)/metrics"
    address = re.findall(pattern, cluster.log(), re.MULTILINE)[-1]
    with urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as page:
        text = page.read().decode()
    found = re.search(r"^tidemill_follower_read_bytes_total (\d+)$", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_F65_a_near_follower_serves_librdkafka_and_its_death_loses_and_repeats_nothing(
    cluster, topic
):
    leader, near, other = create(cluster, topic)
    log = (topic, 0)
    tail = Tail(cluster.bootstrap, [log], client_rack=RACKS[near])
    load = Load(cluster.bootstrap, [log], seed=1).start()
    load.wait_acknowledged(2_000)
    wait_served(cluster, near)
    assert served_bytes(cluster, other) == served_bytes(cluster, leader) == 0

    cluster.kill_broker(near)
    load.wait_acknowledged(2_000)
    cluster.wait_log(rf"^\[supervisor\] broker {near} is ready again")
    load.wait_acknowledged(2_000)
    load.finish()

    assert load.failures == []
    tail.finish(len(load.acknowledged))
    assert tail.failures == []
    acknowledged = sorted((one.offset, one.value) for one in load.acknowledged)
    assert tail.read[log] == acknowledged


def wait_served(cluster: ClusterProcess, broker_id: int) -> None:
    wait_until(lambda: served_bytes(cluster, broker_id) > 0, f"broker {broker_id} served nobody")


def test_F65_kafka_python_reads_from_the_near_follower_and_goes_on_when_it_dies(cluster, topic):
    _, near, _ = create(cluster, topic)
    load = Load(cluster.bootstrap, [(topic, 0)], seed=2).start()
    load.wait_acknowledged(500)
    place = kafka.TopicPartition(topic, 0)
    reader = KafkaPython()
    consumer = reader.consumer(cluster.bootstrap, client_rack=RACKS[near])
    try:
        consumer.assign([place])
        consumer.seek(place, 0)
        read = reader.read(consumer, 500)
        wait_served(cluster, near)
        cluster.kill_broker(near)
        load.wait_acknowledged(500)
        load.finish()
        assert load.failures == []
        read += reader.read(consumer, len(load.acknowledged) - len(read))
    finally:
        consumer.close()
    assert [one.offset for one in read] == list(range(len(load.acknowledged)))


def test_F65_our_own_reader_reads_from_the_near_follower(cluster, topic):
    _, near, other = create(cluster, topic)
    Confluent().produce(cluster.bootstrap, topic, [Message(b"%d" % n) for n in range(500)])
    reading = ("consume", topic, "--rack", RACKS[near], "--count", "500")
    assert printed_by(cluster.bootstrap, *reading).split() == [str(n) for n in range(500)]
    assert served_bytes(cluster, near) > 0
    assert served_bytes(cluster, other) == 0


def test_T38_a_broker_tells_its_rack_and_its_selector(cluster, topic):
    create(cluster, topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    seen = admin.describe_cluster().result(DEADLINE_S)
    assert {one.id: one.rack for one in seen.nodes} == dict(enumerate(RACKS))
    (described,) = admin.describe_configs(
        [ConfigResource(ConfigResource.Type.BROKER, "1")]
    ).values()
    keys = described.result(DEADLINE_S)
    assert keys["broker.rack"].value == RACKS[1]
    assert keys["replica.selector.class"].value == "rack"
