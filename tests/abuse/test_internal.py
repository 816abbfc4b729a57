"""A stranger on the listener for brokers (S31): it has no broker epoch, and cannot guess one."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from tests.abuse.requests import metadata
from tests.abuse.stranger import Stranger
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tidemill.wire.generated.replica_progress import (
    ProgressPartition,
    ProgressTopic,
    ReplicaProgressRequest,
)

METADATA = 12
"""The first version with topic ids for names."""
LISTENS = "0A"
ALTER_PARTITION, REPLICA_FETCH, REPLICA_PROGRESS = 3, 17, 0
GUESSED_EPOCH = 1 << 31
"""The first broker epoch, if its 31 random bits were all zero."""


def internal_address(victim) -> str:
    """Where it accepts brokers: the port that it tells no client."""
    pid = victim.process.pid
    links = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    inodes = {found[1] for link in links if (found := re.match(r"socket:\[(\d+)\]", link))}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENS} & {
        int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in inodes
    }
    (metrics,) = re.findall(r"metrics on http://[^:]+:(\d+)", victim.process.log_path.read_text())
    known = {int(victim.bootstrap.rpartition(":")[2]), int(metrics)}
    (internal,) = ports - known
    return f"127.0.0.1:{internal}"


@pytest.fixture
def stranger(victim):
    with Stranger(internal_address(victim), victim.new_peer()) as made:
        yield made


def canary_of(victim):
    with victim.connect("127.0.0.1") as client:
        (topic,) = client.call(metadata("canary"), METADATA).topics
    (partition,) = topic.partitions
    return topic.topic_id, partition


@pytest.mark.parametrize("epoch", [-1, 0, GUESSED_EPOCH])
def test_S31_a_stranger_cannot_change_an_in_sync_set(victim, stranger, epoch):
    topic_id, before = canary_of(victim)
    change = RequestPartitionData(
        partition_index=0,
        leader_epoch=before.leader_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=7, broker_epoch=epoch)],
        partition_epoch=0,
    )
    topics = [RequestTopicData(topic_id=topic_id, partitions=[change])]
    request = AlterPartitionRequest(broker_id=0, broker_epoch=epoch, topics=topics)
    assert stranger.call(request, ALTER_PARTITION).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert canary_of(victim) == (topic_id, before)


@pytest.mark.parametrize("replica_id", [0, 7])
def test_S31_a_stranger_gets_no_records_as_a_replica(victim, stranger, replica_id):
    topic_id, _ = canary_of(victim)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=GUESSED_EPOCH),
        max_bytes=1 << 20,
        topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])],
    )
    response = stranger.call(request, REPLICA_FETCH)
    codes = {one.error_code for topic in response.responses for one in topic.partitions}
    assert response.error_code or codes
    assert ErrorCode.NONE not in codes
    assert not any(one.records for topic in response.responses for one in topic.partitions)


def test_S31_progress_that_a_stranger_tells_moves_no_mark(victim, stranger):
    topic_id, _ = canary_of(victim)
    end = victim.end_offset("canary")
    told = ProgressPartition(partition_index=0, leader_epoch=0, flushed_offset=1 << 40)
    request = ReplicaProgressRequest(
        broker_id=0,
        broker_epoch=GUESSED_EPOCH,
        topics=[ProgressTopic(topic_id=topic_id, partitions=[told])],
    )
    stranger.send(stranger.frame(request, REPLICA_PROGRESS))
    victim.check_canary()
    assert victim.end_offset("canary") == end + 1


def test_S31_garbage_closes_the_connection_of_a_stranger_with_one_line(victim, stranger):
    stranger.send(b"\xff" * 64)
    assert stranger.is_closed()


def test_S31_an_unknown_topic_is_no_failure(stranger):
    request = AlterPartitionRequest(
        broker_id=0,
        broker_epoch=GUESSED_EPOCH,
        topics=[RequestTopicData(topic_id=UUID(int=5), partitions=[RequestPartitionData()])],
    )
    assert stranger.call(request, ALTER_PARTITION).error_code == ErrorCode.STALE_BROKER_EPOCH
