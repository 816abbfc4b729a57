from __future__ import annotations

import pytest

from tests.unit.server.one_broker import CAPACITY_BYTES, OneBroker
from tidemill.core.errors import ErrorCode
from tidemill.replication.following import RefusedCut
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)

VERSIONS = range(1, 6)


def describe(broker, wanted=None, version=5):
    """The directory's description; `wanted` is topic -> partitions."""
    topics = None
    if wanted is not None:
        topics = [DescribableLogDirTopic(topic=k, partitions=v) for k, v in wanted.items()]
    (result,) = broker.call(DescribeLogDirsRequest(topics=topics), version).results
    return result


def sizes(result):
    return {
        (topic.name, one.partition_index): one.partition_size
        for topic in result.topics
        for one in topic.partitions
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_partition_of_this_broker_is_listed_with_its_size(broker, version):
    broker.make_topic("t", 2)
    broker.make_topic("a")
    broker.append("t", 1000, index=1)

    result = describe(broker, version=version)

    assert (result.error_code, result.log_dir) == (ErrorCode.NONE, "/data")
    size = broker.partition("t", 1).log.size_bytes
    assert size > 0
    assert sizes(result) == {("a", 0): 0, ("t", 0): 0, ("t", 1): size}


@pytest.mark.parametrize("version", VERSIONS)
def test_total_and_usable_bytes_are_sent_from_version_4_on(broker, version):
    used = 1_000
    broker.disk.open("/data/file", create=True).pwrite([b"x" * used], 0)
    result = describe(broker, version=version)
    told = (CAPACITY_BYTES, CAPACITY_BYTES - used) if version >= 4 else (-1, -1)
    assert (result.total_bytes, result.usable_bytes) == told


def test_only_requested_partitions_on_this_broker_are_listed(broker):
    broker.make_topic("t", 2)
    broker.make_topic("a")
    result = describe(broker, {"t": [1, 1, 7], "nowhere": [0]})
    assert sizes(result) == {("t", 1): 0}


def test_an_empty_list_of_topics_means_none(broker):
    broker.make_topic("t")
    assert describe(broker, {}).topics == []


def test_a_replica_behind_the_high_watermark_reports_its_lag(broker):
    broker.make_topic("t")
    broker.append("t", 1000)
    broker.partition("t").high_watermark = 5
    assert describe(broker).topics[0].partitions[0].offset_lag == 4


def test_a_failed_directory_reports_only_its_error(broker):
    broker.make_topic("t")
    broker.replicas.go_offline()
    result = describe(broker)
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


def test_a_directory_that_cannot_be_read_is_a_storage_error():
    broker = OneBroker(**{"data.dir": "/missing"})
    result = describe(broker)
    broker.close()
    assert (result.error_code, result.usable_bytes) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_may_not_describe_the_cluster_gets_no_directories(broker, version):
    broker.permissions.deny(Operation.DESCRIBE)
    answer = broker.call(DescribeLogDirsRequest(topics=None), version)
    assert answer.results == []
    assert answer.error_code == (31 if version >= 3 else 0)


def test_I13_a_replica_tells_which_cut_it_refuses(broker):
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [2, 1]})
    (told,) = describe(broker).topics[0].partitions
    assert (told.log_end_offset, told.refused_cut_offset, told.refused_in_epoch) == (0, -1, -1)
    broker.partition("t").as_follower.refused_cut = RefusedCut(4, offset=7, committed_offset=9)
    (told,) = describe(broker).topics[0].partitions
    assert (told.refused_cut_offset, told.committed_offset, told.refused_in_epoch) == (7, 9, 4)
