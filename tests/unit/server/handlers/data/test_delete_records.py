from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)

VERSIONS = range(3)


def delete(broker, offset, version=2, *, name="t", index=0):
    wanted = DeleteRecordsPartition(partition_index=index, offset=offset)
    topics = [DeleteRecordsTopic(name=name, partitions=[wanted])]
    return broker.call(DeleteRecordsRequest(topics=topics), version).topics[0].partitions[0]


@pytest.fixture
def three_records(broker):
    broker.make_topic("t")
    broker.append("t", 1000, 1001, 1002)
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_the_log_starts_at_the_offset_that_was_named(three_records, version):
    answer = delete(three_records, 2, version)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 2)
    assert three_records.partition("t").log.log_start_offset == 2


def test_minus_one_deletes_up_to_the_high_watermark(three_records):
    assert delete(three_records, -1).low_watermark == 3


def test_an_offset_below_the_log_start_changes_nothing(three_records):
    delete(three_records, 2)
    answer = delete(three_records, 1)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("offset", [4, -2])
def test_S45_offsets_out_of_range_delete_nothing(three_records, offset):
    answer = delete(three_records, offset)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert three_records.partition("t").log.log_start_offset == 0


def test_S45_records_that_are_not_committed_cannot_be_deleted(broker):
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [1, 2]})
    broker.append("t", 1000)
    assert delete(broker, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_S45_partitions_that_do_not_exist_are_refused(three_records):
    answer = delete(three_records, 0, index=-5)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_brokers_own_topics_are_refused(broker):
    broker.make_topic("__share_group_state", replication_factor=1)
    broker.append("__share_group_state", 1000)
    answer = delete(broker, -1, name="__share_group_state")
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert broker.partition("__share_group_state").log.log_start_offset == 0


def test_deleting_needs_permission(three_records):
    three_records.permissions.deny(Operation.DELETE, "t")
    answer = delete(three_records, -1)
    assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert three_records.partition("t").log.log_start_offset == 0


def test_I9_deleted_records_are_durable_before_the_answer(three_records):
    delete(three_records, 2)
    assert three_records.checkpoints == 1
