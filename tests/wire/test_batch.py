from __future__ import annotations

import struct

import pytest

from tests.support.flavours import FLAVOURS, load
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire import compression, produced_batch, records
from tidemill.wire.batch import (
    HEADER_BYTES,
    CorruptBatch,
    assign_offsets,
    iter_headers,
    read_header,
    rebuild,
    recompress,
    stamp_append_time,
    verify,
    write_checksum,
)
from tidemill.wire.produced_batch import (
    BatchPolicy,
    InvalidRecords,
    prepare_produced,
    validate_produced,
)
from tidemill.wire.records import Record, build_batch, iter_records

NOW_MS = 1_700_000_000_000
PLAIN = BatchPolicy()

# The position of each field in a batch, for tests that falsify it.
FIELDS = {
    "batch_length": (8, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


@pytest.fixture(params=FLAVOURS, autouse=True)
def walker(request, monkeypatch):
    """Every test of a batch runs with the compiled and the interpreted walk."""
    module = load(request.param, "record_walk")
    for name in ("walk", "keyless", "timestamps_outside"):
        monkeypatch.setattr(produced_batch, name, getattr(module, name))
    monkeypatch.setattr(records, "record_walk", module)


def make(count: int = 3, **options) -> bytearray:
    return build_batch(
        [Record(b"v%d" % i, b"k", timestamp=NOW_MS + i) for i in range(count)], **options
    )


def with_fields(data: bytearray, *, sealed: bool = True, **fields: int) -> memoryview:
    for name, value in fields.items():
        position, layout = FIELDS[name]
        struct.pack_into(layout, data, position, value)
    if sealed:
        write_checksum(data)
    return memoryview(data)


def refusal(view: memoryview | bytearray, policy: BatchPolicy = PLAIN) -> ErrorCode:
    before = bytes(view)
    with pytest.raises(KafkaError) as caught:
        validate_produced(memoryview(view), policy, NOW_MS)
    assert bytes(view) == before
    return caught.value.code


# --- the header ----------------------------------------------------------------------------------


def test_a_header_has_every_field_and_what_follows_from_them():
    data = make(3, producer_id=7, producer_epoch=2, base_sequence=2**31 - 2, transactional=True)
    assign_offsets(data, 100, 5)
    header = read_header(data)
    assert HEADER_BYTES == 61
    assert header.size_bytes == len(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)
    assert header.partition_leader_epoch == 5
    assert (header.producer_id, header.producer_epoch) == (7, 2)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS + 2)
    assert (header.is_transactional, header.is_control) == (True, False)
    assert (header.codec, header.timestamp_type) == (compression.NONE, "create")


def test_T29_sequences_wrap_to_zero():
    assert (
        read_header(make(3, producer_id=7, producer_epoch=0, base_sequence=2**31 - 2)).last_sequence
        == 0
    )


def test_a_batch_without_producer_has_no_last_sequence():
    assert read_header(make(3)).last_sequence == -1


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_a_cut_header_is_corrupt(size):
    with pytest.raises(CorruptBatch):
        read_header(make()[:size])


@pytest.mark.parametrize("position", [-1, 1, 10**9])
def test_a_header_outside_the_buffer_is_corrupt(position):
    with pytest.raises(CorruptBatch):
        read_header(make(1)[:HEADER_BYTES], position)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", 1),
        ("magic", 3),
        ("batch_length", 48),
        ("batch_length", -1),
        ("last_offset_delta", -1),
        ("record_count", -1),
    ],
)
def test_a_header_with_nonsense_is_corrupt(field, value):
    with pytest.raises(CorruptBatch):
        read_header(with_fields(make(), **{field: value}))


def test_headers_of_consecutive_batches_come_with_their_positions():
    first, second = make(1), make(2)
    found = list(iter_headers(bytes(3) + first + second, 3))
    assert [(position, header.record_count) for position, header in found] == [
        (3, 1),
        (3 + len(first), 2),
    ]


def test_T31_a_cut_last_batch_ends_the_iteration():
    first, second = make(1), make(2)
    whole = first + second
    for end in range(len(first), len(whole)):
        assert len(list(iter_headers(whole[:end]))) == 1
        assert len(list(iter_headers(whole, 0, end))) == 1


def test_iteration_stops_at_what_is_not_a_batch():
    with pytest.raises(CorruptBatch):
        list(iter_headers(make(1) + bytes(100)))


def test_S23_a_stored_batch_with_a_wrong_checksum_is_found():
    data = make()
    verify(memoryview(data), read_header(data))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch):
        verify(memoryview(data), read_header(data))


def test_a_stored_batch_that_is_cut_is_found():
    data = make()
    with pytest.raises(CorruptBatch):
        verify(memoryview(data)[:-1], read_header(data))


# --- what a client may produce -------------------------------------------------------------------


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_a_good_batch_passes_unchanged(codec):
    data = make(5, codec=codec)
    before = bytes(data)
    assert validate_produced(memoryview(data), PLAIN, NOW_MS).record_count == 5
    assert bytes(data) == before


def test_T23_two_batches_are_refused():
    assert refusal(make(1) + make(1)) is ErrorCode.INVALID_RECORD


def test_T23_no_batch_is_refused():
    assert refusal(bytearray()) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_T23_another_message_format_is_refused(magic):
    assert refusal(with_fields(make(), magic=magic)) is ErrorCode.INVALID_RECORD


def test_T23_an_old_message_shorter_than_a_header_is_named_as_old():
    old = struct.pack(">qiIbb", 0, 14, 0, 1, 0) + bytes(8)
    with pytest.raises(KafkaError, match="too old"):
        validate_produced(memoryview(bytearray(old)), PLAIN, NOW_MS)


def test_S23_a_batch_cut_anywhere_is_refused():
    data = make(2)
    for size in range(1, len(data)):
        assert refusal(data[:size]) in {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}


def test_T26_the_size_limit_counts_the_whole_batch():
    data = make()
    validate_produced(memoryview(data), BatchPolicy(max_message_bytes=len(data)), NOW_MS)
    limit = BatchPolicy(max_message_bytes=len(data) - 1)
    assert refusal(data, limit) is ErrorCode.MESSAGE_TOO_LARGE


def test_S23_a_wrong_checksum_is_refused():
    crc = read_header(make()).crc
    assert refusal(with_fields(make(), sealed=False, crc=crc ^ 1)) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"last_offset_delta": 3}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -1, "record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1, "last_offset_delta": -2}, ErrorCode.INVALID_RECORD),
        ({"record_count": 4, "last_offset_delta": 3}, ErrorCode.INVALID_RECORD),
        ({"record_count": 2, "last_offset_delta": 1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x40}, ErrorCode.INVALID_RECORD),
        ({"attributes": -0x8000}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 4}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -2}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": -1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"batch_length": 48}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -1}, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_S23_an_inconsistent_header_is_refused(fields, code):
    assert refusal(with_fields(make(3), **fields)) is code


def test_S23_a_length_beyond_the_view_is_refused():
    data = make()
    view = with_fields(data, batch_length=len(data))
    assert refusal(view) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_T25_offset_deltas_with_a_gap_are_refused(codec):
    gapped = build_batch(
        [Record(b"a", offset=0, timestamp=NOW_MS), Record(b"b", offset=5, timestamp=NOW_MS)],
        codec=codec,
    )
    assert refusal(with_fields(gapped, last_offset_delta=1)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_T25_keyless_records_of_a_compacted_topic_are_named(codec):
    keys = [b"a", None, b"", None]
    data = build_batch([Record(b"v", key, timestamp=NOW_MS) for key in keys], codec=codec)
    with pytest.raises(InvalidRecords) as caught:
        validate_produced(memoryview(data), BatchPolicy(require_keys=True), NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in caught.value.record_errors] == [1, 3]


def test_T25_the_named_records_are_bounded():
    data = build_batch([Record(b"v", timestamp=NOW_MS)] * 500)
    with pytest.raises(InvalidRecords) as caught:
        validate_produced(memoryview(data), BatchPolicy(require_keys=True), NOW_MS)
    assert len(caught.value.record_errors) == 100


# --- timestamps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp", "policy"),
    [
        (NOW_MS + 3_600_001, PLAIN),
        (2**63 - 1, PLAIN),
        (-2, PLAIN),
        (-(2**63), PLAIN),
        (NOW_MS - 1001, BatchPolicy(timestamp_before_max_ms=1000)),
    ],
)
def test_S24_a_timestamp_outside_the_allowed_range_is_refused(timestamp, policy):
    data = build_batch([Record(b"v", timestamp=timestamp)])
    assert refusal(data, policy) is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("timestamp", [0, NOW_MS, NOW_MS + 3_600_000])
def test_S24_a_timestamp_inside_the_allowed_range_passes(timestamp):
    data = build_batch([Record(b"v", timestamp=timestamp)])
    assert validate_produced(memoryview(data), PLAIN, NOW_MS).max_timestamp == timestamp


def test_S24_an_unlimited_range_does_not_overflow():
    unlimited = BatchPolicy(timestamp_before_max_ms=2**63 - 1, timestamp_after_max_ms=2**63 - 1)
    data = build_batch([Record(b"v", timestamp=2**63 - 1)])
    assert validate_produced(memoryview(data), unlimited, NOW_MS).max_timestamp == 2**63 - 1


def test_S24_a_sum_beyond_64_bits_is_refused():
    unlimited = BatchPolicy(timestamp_after_max_ms=2**63 - 1)
    data = build_batch([Record(b"v", timestamp=5), Record(b"v", timestamp=10)])
    assert (
        refusal(with_fields(data, base_timestamp=2**63 - 1), unlimited)
        is ErrorCode.INVALID_TIMESTAMP
    )


def test_S24_records_without_timestamp_pass():
    data = build_batch([Record(b"v"), Record(b"w")])
    assert validate_produced(memoryview(data), PLAIN, NOW_MS).max_timestamp == -1


def test_S24_the_records_with_a_wrong_timestamp_are_named():
    times = [NOW_MS, NOW_MS + 10**9, NOW_MS, -5]
    data = build_batch([Record(b"v", timestamp=time) for time in times])
    with pytest.raises(InvalidRecords) as caught:
        validate_produced(memoryview(data), PLAIN, NOW_MS)
    assert [index for index, _ in caught.value.record_errors] == [1, 3]


def test_a_wrong_max_timestamp_is_corrected_with_a_new_checksum():
    view = with_fields(make(3), max_timestamp=0)
    header = validate_produced(view, PLAIN, NOW_MS)
    assert header.max_timestamp == NOW_MS + 2
    assert read_header(view).max_timestamp == NOW_MS + 2
    verify(view, read_header(view))
    assert header.crc == read_header(view).crc


# --- what the leader writes ----------------------------------------------------------------------


def test_T24_offset_and_epoch_are_written_without_touching_the_checksum():
    data = make()
    crc = read_header(data).crc
    assign_offsets(memoryview(data), 2**62, 77)
    header = read_header(data)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (2**62, 77, crc)
    verify(memoryview(data), header)


def test_T24_append_time_sets_type_max_timestamp_and_checksum():
    data = make()
    stamp_append_time(data, NOW_MS + 99)
    header = read_header(data)
    assert (header.timestamp_type, header.max_timestamp) == ("append", NOW_MS + 99)
    verify(memoryview(data), header)
    assert {record.timestamp for record in iter_records(data)} == {NOW_MS + 99}


def test_T24_a_topic_with_append_time_ignores_what_the_client_says():
    data = build_batch([Record(b"v", timestamp=2**63 - 1)])
    view, header, _ = prepare_produced(
        memoryview(data), BatchPolicy(timestamp_type="append"), NOW_MS
    )
    assert (header.timestamp_type, header.max_timestamp) == ("append", NOW_MS)
    verify(view, header)


@pytest.mark.parametrize("target", compression.CODEC_NAMES)
@pytest.mark.parametrize("source", compression.CODEC_NAMES)
def test_T25_a_batch_is_recompressed_for_its_topic(source, target):
    data = make(20, codec=source, producer_id=4, producer_epoch=1, base_sequence=9)
    policy = BatchPolicy(compression=compression.CODEC_NAMES[target])
    view, header, _ = prepare_produced(memoryview(data), policy, NOW_MS)
    assert (header.codec, header.producer_id, header.base_sequence) == (target, 4, 9)
    verify(view, header)
    assert list(iter_records(view)) == list(iter_records(data))


def test_T25_the_same_codec_keeps_the_bytes():
    view = memoryview(make(20, codec=compression.ZSTD))
    kept, _, _ = prepare_produced(view, BatchPolicy(compression="zstd"), NOW_MS)
    assert kept is view


def test_T26_a_batch_that_grows_beyond_the_limit_by_recompression_is_refused():
    data = build_batch([Record(bytes(5000), timestamp=NOW_MS)], codec=compression.ZSTD)
    policy = BatchPolicy(max_message_bytes=1000, compression="uncompressed")
    with pytest.raises(KafkaError) as caught:
        prepare_produced(memoryview(data), policy, NOW_MS)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_recompression_keeps_flags_and_times():
    data = make(2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    header = read_header(recompress(memoryview(data), compression.LZ4))
    assert header.is_transactional
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS + 1)


# --- what compaction makes of a batch ------------------------------------------------------------


def section_of(data):
    return data[HEADER_BYTES:]


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_a_rebuilt_batch_keeps_everything_but_the_dropped_records(codec):
    data = make(3, codec=codec, producer_id=4, producer_epoch=1, base_sequence=9)
    assign_offsets(memoryview(data), 100, 7)
    old = read_header(data)
    left = build_batch([list(iter_records(data))[2]], base_offset=100)
    made = rebuild(old, section_of(left), record_count=1, max_timestamp=5, delete_horizon_ms=None)
    new = read_header(made)
    verify(memoryview(made), new)
    same = ("base_offset", "last_offset", "partition_leader_epoch", "producer_id", "codec")
    assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
    assert (new.producer_epoch, new.base_sequence, new.last_sequence) == (1, 9, 11)
    assert (new.record_count, new.max_timestamp, new.delete_horizon_ms) == (1, 5, None)
    assert [record.offset for record in iter_records(made)] == [102]


def test_a_delete_horizon_replaces_the_base_timestamp():
    data = make(2)
    made = rebuild(
        read_header(data),
        section_of(data),
        record_count=2,
        max_timestamp=NOW_MS,
        delete_horizon_ms=NOW_MS + 9,
    )
    header = read_header(made)
    assert header.delete_horizon_ms == header.base_timestamp == NOW_MS + 9


def test_an_emptied_batch_is_a_header_that_keeps_its_producer():
    data = make(3, codec=compression.LZ4, producer_id=4, producer_epoch=1, base_sequence=9)
    made = rebuild(read_header(data), b"", record_count=0, max_timestamp=-1, delete_horizon_ms=None)
    header = read_header(made)
    verify(memoryview(made), header)
    assert (len(made), header.codec, header.record_count) == (HEADER_BYTES, compression.NONE, 0)
    assert (header.last_sequence, header.next_offset) == (11, 3)
    assert list(iter_records(made)) == []


def test_S23_a_client_cannot_set_a_delete_horizon():
    data = make()
    data[22] |= 0x40
    write_checksum(data)
    with pytest.raises(KafkaError) as refused:
        validate_produced(memoryview(data), BatchPolicy(), NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_RECORD
