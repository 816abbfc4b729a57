"""Produce: what one request may cost per turn of the loop, and what happens to the rest (S18)."""

from __future__ import annotations

import struct
from dataclasses import replace

import cramjam
import pytest
import zstandard

from tests.unit.server.one_broker import NOW_MS, finish_slices
from tidemill.core.errors import DiskBusy, ErrorCode
from tidemill.core.limits import (
    ANSWER_RECORD_ERRORS_MAX,
    BATCH_RECORDS_MAX,
    LOOP_BATCH_RECORDS_MAX,
    MIB,
    PARTITION_WORK,
    PRODUCE_WORK_PER_SLICE,
    RECORD_ERRORS_MAX,
)
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.handler import Unfinished
from tidemill.wire import compression
from tidemill.wire.batch import HEADER_BYTES, read_header, write_checksum
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.produced_batch import BatchPolicy
from tidemill.wire.records import Record, build_batch

BATCH_LENGTH_AT, ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, RECORD_COUNT_AT = 8, 21, 23, 57
PARTITIONS_PER_SLICE = PRODUCE_WORK_PER_SLICE // PARTITION_WORK


def _batch(count=1, size=5, codec=0, **producer):
    records = [Record(b"v" * size, timestamp=NOW_MS) for _ in range(count)]
    return build_batch(records, codec=codec, **producer)


def _request(*batches, acks=1, name="orders"):
    """A batch for each partition from 0 on."""
    data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    topic = TopicProduceData(name=name, partition_data=data)
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def _entries(answer):
    return answer.responses[0].partition_responses


def _ends(broker, count, name="orders"):
    return [broker.partition(name, index).log.log_end_offset for index in range(count)]


def _work_of_slices(broker, request, monkeypatch):
    """The uncompressed bytes that each slice on the loop went through."""
    read = [0]
    decompress = compression.decompress

    def counted(codec, data, bytes_max=None, block_bytes_min=0):
        if bytes_max is None:  # in a thread
            return decompress(codec, data)
        try:
            opened = decompress(codec, data, bytes_max, block_bytes_min)
        except compression.DecompressedTooLarge:
            read[-1] += bytes_max
            raise
        read[-1] += len(opened)
        return opened

    monkeypatch.setattr(compression, "decompress", counted)
    answer, _ = broker.start(request, 9)
    assert isinstance(answer, Unfinished)
    read.append(0)
    broker.run(finish_slices(answer, lambda: read.append(0)))
    return read


def _with_payload(codec, payload):
    """A batch whose records are `payload`."""
    batch = _batch()[:HEADER_BYTES] + payload
    struct.pack_into(">i", batch, BATCH_LENGTH_AT, len(batch) - 12)
    struct.pack_into(">h", batch, ATTRIBUTES_AT, codec)
    write_checksum(batch)
    return batch


def _zeros(size):
    """A kilobyte that decompresses to `size` bytes, which are no records."""
    return _with_payload(compression.ZSTD, zstandard.ZstdCompressor().compress(bytes(size)))


def test_a_request_of_ordinary_size_is_done_at_once(broker):
    broker.make_topic("orders", 20)
    answer, _ = broker.start(_request(*[_batch(100, codec=4) for _ in range(20)]), 9)
    assert not isinstance(answer, Unfinished)


def test_S11_a_request_of_many_partitions_appends_to_some_per_slice(broker):
    count = 3 * PARTITIONS_PER_SLICE
    broker.make_topic("orders", count)
    answer, _ = broker.start(_request(*[_batch() for _ in range(count)]), 9)
    ends = [sum(_ends(broker, count))]
    response = broker.run(finish_slices(answer, lambda: ends.append(sum(_ends(broker, count)))))
    steps = [after - before for before, after in zip([0, *ends], ends, strict=False)]
    assert max(steps) <= PARTITIONS_PER_SLICE
    assert [entry.base_offset for entry in _entries(response)] == [0] * count
    assert _ends(broker, count) == [1] * count


def test_S11_partitions_that_do_not_exist_take_slices_too(broker):
    count = 2 * PARTITIONS_PER_SLICE
    broker.make_topic("orders", 1)
    answer, _ = broker.start(_request(*[b""] * count), 9)
    assert isinstance(answer, Unfinished)
    codes = {entry.error_code for entry in _entries(broker.run(finish_slices(answer)))}
    assert codes == {ErrorCode.INVALID_RECORD, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_S11_topics_without_partitions_take_slices_too(broker):
    topics = [TopicProduceData(name=str(n)) for n in range(2 * PARTITIONS_PER_SLICE)]
    answer, _ = broker.start(ProduceRequest(acks=1, topic_data=topics), 9)
    assert isinstance(answer, Unfinished)


def test_S18_a_slice_reads_a_bounded_number_of_uncompressed_bytes(broker, monkeypatch):
    broker.make_topic("orders", 12, overrides={"max.message.bytes": "4000000"})
    batches = [_batch(1000, size=2_000, codec=compression.LZ4) for _ in range(12)]
    read = _work_of_slices(broker, _request(*batches), monkeypatch)
    assert len(read) > 3
    assert max(read) < 2 * PRODUCE_WORK_PER_SLICE
    assert _ends(broker, 12) == [1000] * 12


def test_S18_damaged_batches_count_by_what_reading_them_may_have_cost(broker, monkeypatch):
    broker.make_topic("orders", 40)
    cut = [_with_payload(compression.GZIP, bytes(60_000)) for _ in range(40)]
    read = _work_of_slices(broker, _request(*cut), monkeypatch)
    assert len(read) > 15


def test_S18_a_batch_that_grows_too_much_is_read_in_a_thread(broker, monkeypatch):
    broker.make_topic("orders", 3)
    away = []
    run = broker.disk.run

    async def counted(operation):
        away.append(operation)
        return await run(operation)

    monkeypatch.setattr(broker.disk, "run", counted)
    request = _request(_zeros(20 * MIB), _batch(), _zeros(20 * MIB))
    codes = [entry.error_code for entry in _entries(broker.call(request, 9))]
    assert codes == [ErrorCode.INVALID_RECORD, ErrorCode.NONE, ErrorCode.INVALID_RECORD]
    assert len(away) == 2


def test_S18_a_bomb_costs_the_loop_no_more_than_its_own_size_allows(broker, monkeypatch):
    broker.make_topic("orders", 8)
    read = _work_of_slices(broker, _request(*[_zeros(20 * MIB)] * 8), monkeypatch)
    assert len([size for size in read if size]) == 8  # each bomb ends a slice
    assert max(read) < MIB


def test_S11_the_refused_records_that_an_answer_lists_are_bounded(broker):
    count = ANSWER_RECORD_ERRORS_MAX // RECORD_ERRORS_MAX + 5
    broker.make_topic("orders", count)
    late = build_batch([Record(b"", timestamp=NOW_MS + 10**9)] * (2 * RECORD_ERRORS_MAX))
    entries = _entries(broker.call(_request(*[late] * count), 9))
    assert {entry.error_code for entry in entries} == {ErrorCode.INVALID_TIMESTAMP}
    listed = [len(entry.record_errors) for entry in entries]
    assert listed == [RECORD_ERRORS_MAX] * (count - 5) + [0] * 5


def _tiny_blocks(codec, count):
    """One record, compressed in `count` blocks; all but the last hold nothing."""
    record = bytes(_batch()[HEADER_BYTES:])
    if codec == compression.ZSTD:  # the last block: its flag, and its size
        last = (1 | len(record) << 3).to_bytes(3, "little") + record
        return b"\x28\xb5\x2f\xfd\0\0" + bytes(3) * (count - 1) + last
    blocks = [cramjam.snappy.compress_raw(b"")] * (count - 1)
    blocks.append(cramjam.snappy.compress_raw(record))
    framed = (struct.pack(">i", len(block)) + bytes(block) for block in blocks)
    return struct.pack(">8sii", b"\x82SNAPPY\0", 1, 1) + b"".join(framed)


@pytest.mark.parametrize("codec", [compression.ZSTD, compression.SNAPPY])
def test_S18_a_batch_of_very_many_small_blocks_is_read_in_a_thread(broker, codec):
    broker.make_topic("orders", 1)
    answer, _ = broker.start(_request(_with_payload(codec, _tiny_blocks(codec, 1_000))), 9)
    assert isinstance(answer, Unfinished)
    (entry,) = _entries(broker.run(finish_slices(answer)))
    assert (entry.error_code, entry.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize("codec", [compression.ZSTD, compression.SNAPPY])
def test_a_batch_of_a_few_small_blocks_is_read_at_once(broker, codec):
    broker.make_topic("orders", 1)
    answer, _ = broker.start(_request(_with_payload(codec, _tiny_blocks(codec, 10))), 9)
    assert not isinstance(answer, Unfinished)


def test_a_batch_in_blocks_of_the_usual_size_is_read_at_once(broker):
    broker.make_topic("orders", 1, overrides={"max.message.bytes": "4000000"})
    answer, _ = broker.start(_request(_batch(1_000, size=3_000, codec=compression.SNAPPY)), 9)
    assert not isinstance(answer, Unfinished)


def test_a_long_batch_is_appended_once_it_is_checked(broker):
    broker.make_topic("orders", 3, overrides={"max.message.bytes": "40000000"})
    long = _batch(2_000, size=10_000, codec=compression.ZSTD)
    response = broker.call(_request(_batch(), long, _batch(), acks=-1), 9)
    assert [entry.base_offset for entry in _entries(response)] == [0, 0, 0]
    assert _ends(broker, 3) == [1, 2_000, 1]


@pytest.mark.parametrize("meanwhile", ["LogAppendTime", "CreateTime"])
def test_T24_the_append_time_of_a_long_batch_is_the_one_that_is_stored(broker, meanwhile):
    overrides = {"max.message.bytes": "40000000", "message.timestamp.type": "LogAppendTime"}
    broker.make_topic("orders", 1, overrides=overrides)
    long = _batch(2_000, size=10_000, codec=compression.ZSTD)
    answer, _ = broker.start(_request(long), 9)

    def time_passes():
        broker.clock.now_ms += 5
        settings = broker.partition("orders").settings
        kind = "append" if meanwhile == "LogAppendTime" else "create"
        broker.partition("orders").set_settings(
            replace(settings, policy=BatchPolicy(timestamp_type=kind))
        )

    (entry,) = _entries(broker.run(finish_slices(answer, time_passes)))
    (chunk,) = (
        broker.partition("orders").read(0, max_bytes=1, end_offset=2_000, at_least_one=True).chunks
    )
    assert entry.log_append_time_ms == read_header(chunk).max_timestamp


def test_a_long_batch_that_finds_no_thread_is_refused_by_itself(broker, monkeypatch):
    broker.make_topic("orders", 3)

    async def busy(_operation):
        raise DiskBusy("too many reads wait for the disk")

    monkeypatch.setattr(broker.disk, "run", busy)
    response = broker.call(_request(_batch(), _zeros(20 * MIB), _batch()), 9)
    codes = [entry.error_code for entry in _entries(response)]
    assert codes == [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]


def test_I1_a_small_batch_does_not_overtake_a_long_one_that_found_no_thread(broker, monkeypatch):
    broker.make_topic("orders", 1, overrides={"max.message.bytes": "40000000"})

    def send(sequence, count, size):
        producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
        batch = _batch(count, size=size, codec=compression.ZSTD, **producer)
        (entry,) = _entries(broker.call(_request(batch), 9))
        return ErrorCode(entry.error_code), entry.base_offset

    with monkeypatch.context() as flood:

        async def busy(_operation):
            raise DiskBusy("too many reads wait for the disk")

        flood.setattr(broker.disk, "run", busy)
        assert send(0, 2_000, 10_000) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert send(2_000, 1, 5) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert send(0, 2_000, 10_000) == (ErrorCode.NONE, 0)
    assert send(2_000, 1, 5) == (ErrorCode.NONE, 2_000)


@pytest.mark.slow
def test_a_batch_of_very_many_records_is_checked_in_a_thread(broker):
    broker.make_topic("orders", 1, overrides={"max.message.bytes": "4000000"})
    batch = build_batch([Record(b"", timestamp=NOW_MS)] * (LOOP_BATCH_RECORDS_MAX + 1))
    answer, _ = broker.start(_request(batch), 9)
    assert isinstance(answer, Unfinished)
    (entry,) = _entries(broker.run(finish_slices(answer)))
    assert entry.error_code == ErrorCode.NONE
    assert _ends(broker, 1) == [LOOP_BATCH_RECORDS_MAX + 1]


def test_a_batch_of_more_records_than_are_allowed_is_refused(broker):
    broker.make_topic("orders", 1)
    count = BATCH_RECORDS_MAX + 1
    batch = _batch()
    struct.pack_into(">i", batch, LAST_OFFSET_DELTA_AT, count - 1)
    struct.pack_into(">i", batch, RECORD_COUNT_AT, count)
    write_checksum(batch)
    (entry,) = _entries(broker.call(_request(batch), 9))
    assert entry.error_code == ErrorCode.INVALID_RECORD
    assert str(BATCH_RECORDS_MAX) in entry.error_message


def test_a_large_batch_that_the_topic_stores_under_another_codec_is_changed_in_a_thread(broker):
    broker.make_topic("orders", 1, overrides={"compression.type": "gzip"})
    answer, _ = broker.start(_request(_batch(400, size=1_000)), 9)
    assert isinstance(answer, Unfinished)
    (entry,) = _entries(broker.run(finish_slices(answer)))
    assert entry.error_code == ErrorCode.NONE
    stored = broker.partition("orders").log.read(0, max_bytes=1 << 20, end_offset=400)
    assert sum(map(len, stored.chunks)) < HEADER_BYTES + 20_000


def test_a_partition_that_is_lost_while_its_batch_is_checked_refuses_only_that_batch(broker):
    broker.make_topic("orders", 2, overrides={"max.message.bytes": "40000000"})
    long = _batch(2_000, size=10_000, codec=compression.ZSTD)
    answer, _ = broker.start(_request(long, _batch()), 9)
    broker.partition("orders").resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    entries = _entries(broker.run(finish_slices(answer)))
    assert [entry.error_code for entry in entries] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NONE,
    ]
    assert _ends(broker, 2) == [0, 1]


def test_a_retry_of_a_long_batch_gets_the_original_offset(broker):
    broker.make_topic("orders", 1, overrides={"max.message.bytes": "40000000"})
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    for _ in range(2):
        long = _batch(2_000, size=10_000, codec=compression.ZSTD, **producer)
        (entry,) = _entries(broker.call(_request(long), 9))
        assert (entry.error_code, entry.base_offset) == (ErrorCode.NONE, 0)
    assert _ends(broker, 1) == [2_000]


def test_acks_all_is_answered_when_the_partitions_of_every_slice_are_acknowledged(broker):
    count = 2 * PARTITIONS_PER_SLICE
    broker.join_broker(2)
    broker.make_topic(
        "orders",
        -1,
        assignments={index: [1, 2] for index in range(count)},
        overrides={"tidemill.flush": "os"},
    )
    answer, _ = broker.start(_request(*[_batch() for _ in range(count)], acks=-1), 9)
    waiting = broker.run(finish_slices(answer))
    assert isinstance(waiting, Deferred)
    heard = []
    waiting.then(heard.append)
    for index in range(count):
        assert heard == []
        broker.partition("orders", index).follower_fetched(
            2, fetch_offset=1, flushed_offset=-1, now=broker.clock.monotonic()
        )
    assert {entry.error_code for entry in _entries(heard[0])} == {ErrorCode.NONE}


def test_acks_0_in_slices_has_no_answer(broker):
    count = 2 * PARTITIONS_PER_SLICE
    broker.make_topic("orders", count)
    answer, _ = broker.start(_request(*[_batch() for _ in range(count)], acks=0), 9)
    assert broker.run(finish_slices(answer)) is None
    assert _ends(broker, count) == [1] * count


def test_a_partition_that_is_named_twice_gets_only_its_first_batch(broker):
    broker.make_topic("orders", 2)
    request = _request(_batch(2), _batch(1))
    request.topic_data += _request(_batch(7)).topic_data
    response = broker.call(request, 9)
    assert [entry.base_offset for entry in _entries(response)] == [0, 0]
    (again,) = response.responses[1].partition_responses
    assert again.error_code == ErrorCode.INVALID_REQUEST
    assert "twice" in again.error_message
    assert _ends(broker, 2) == [2, 1]
