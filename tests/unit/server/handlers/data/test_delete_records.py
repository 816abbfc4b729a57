from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tidemill.core.errors import ErrorCode, StorageFault
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


@pytest.mark.parametrize(
    ("deletes", "code", "start"), [(False, ErrorCode.POLICY_VIOLATION, 0), (True, 0, 3)]
)
def test_a_topic_that_is_only_compacted_keeps_the_newest_record_of_each_key(
    three_records, deletes, code, start
):
    log = three_records.partition("t").log
    log.set_config(replace(log.config, compacts=True, deletes=deletes))
    assert delete(three_records, -1).error_code == code
    assert log.log_start_offset == start


def test_deleting_needs_permission(three_records):
    three_records.permissions.deny(Operation.DELETE, "t")
    answer = delete(three_records, -1)
    assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert three_records.partition("t").log.log_start_offset == 0


def test_I9_deleted_records_are_durable_before_the_answer(three_records):
    delete(three_records, 2)
    assert three_records.checkpoints == 1


def test_S45_a_partition_that_is_named_twice_gets_its_first_offset(three_records):
    wanted = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (1, 2)]
    topics = [DeleteRecordsTopic(name="t", partitions=wanted)]
    answered = three_records.call(DeleteRecordsRequest(topics=topics), 2).topics[0].partitions
    assert [one.error_code for one in answered] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert three_records.partition("t").log.log_start_offset == 1


def test_S45_a_name_that_was_refused_does_not_count_as_the_first(three_records):
    wanted = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (9, 2)]
    topics = [DeleteRecordsTopic(name="t", partitions=wanted)]
    answered = three_records.call(DeleteRecordsRequest(topics=topics), 2).topics[0].partitions
    assert [one.error_code for one in answered] == [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE]


def test_I9_a_checkpoint_that_fails_is_answered_without_waiting_for_followers(broker):
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [1, 2]})
    wanted = DeleteRecordsPartition(partition_index=0, offset=0)
    topics = [DeleteRecordsTopic(name="t", partitions=[wanted])]

    async def fail():
        raise StorageFault("checkpoint: input/output error")

    broker.services.checkpoint = fail
    answer, _ = broker.start(DeleteRecordsRequest(topics=topics, timeout_ms=60_000), 2)

    async def some_turns():
        task = asyncio.ensure_future(answer)
        for _ in range(20):
            await asyncio.sleep(0)
        assert task.done()
        return task.result()

    entry = broker.run(some_turns()).topics[0].partitions[0]
    assert entry.error_code == ErrorCode.KAFKA_STORAGE_ERROR
