"""The bits of batches that consumers must not see as they are, or that the broker made."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire import marks
from tidemill.wire.batch import LOG_APPEND_TIME, read_header, stamp_append_time, verify
from tidemill.wire.produced_batch import BatchPolicy, validate_produced
from tidemill.wire.records import Record, build_batch, iter_records

SENT_MS, STAMP_MS = 1_700_000_000_000, 1_700_000_900_000


def _batch() -> bytearray:
    return build_batch([Record(b"a", timestamp=SENT_MS + 5), Record(b"b", timestamp=SENT_MS)])


def test_a_veiled_batch_keeps_all_but_its_base_timestamp_which_is_the_stamp():
    data = _batch()
    before, header = read_header(data), read_header(data)
    marks.veil(data, header, stamp_ms=STAMP_MS)
    after = read_header(data)
    verify(memoryview(data), after)
    assert marks.is_veiled(after)
    assert marks.is_marked(after)
    assert not marks.is_ours(after)
    assert marks.stamp_of(after) == STAMP_MS
    assert after.max_timestamp == before.max_timestamp
    assert (after.codec, after.last_offset, after.record_count) == (0, 1, 2)
    assert [header.attributes, header.base_timestamp, header.crc] == [
        after.attributes,
        after.base_timestamp,
        after.crc,
    ]
    assert [one.value for one in iter_records(memoryview(data))] == [b"a", b"b"]


def test_the_base_of_the_records_is_found_behind_the_stamp():
    data = _batch()
    header = read_header(data)
    assert marks.record_base(header, 0) == SENT_MS + 5
    marks.veil(data, header, stamp_ms=STAMP_MS)
    assert marks.record_base(header, 0) == SENT_MS + 5


def test_a_batch_of_ours_keeps_its_times():
    data = _batch()
    marks.mark_ours(data)
    header = read_header(data)
    verify(memoryview(data), header)
    assert marks.is_ours(header)
    assert marks.is_marked(header)
    assert not marks.is_veiled(header)
    assert [one.timestamp for one in iter_records(memoryview(data))] == [SENT_MS + 5, SENT_MS]


def test_marks_stand_beside_the_append_time():
    data = _batch()
    stamp_append_time(data, STAMP_MS + 1)
    header = read_header(data)
    marks.veil(data, header, stamp_ms=STAMP_MS)
    after = read_header(data)
    assert after.attributes & LOG_APPEND_TIME
    assert after.max_timestamp == STAMP_MS + 1
    assert marks.stamp_of(after) == STAMP_MS


@pytest.mark.parametrize("mark", [marks.VEILED, marks.OURS, marks.MARKS])
def test_a_client_cannot_set_a_mark(mark):
    data = _batch()
    if mark & marks.VEILED:
        marks.veil(data, read_header(data), stamp_ms=STAMP_MS)
    if mark & marks.OURS:
        marks.mark_ours(data)
    with pytest.raises(KafkaError) as caught:
        validate_produced(memoryview(data), BatchPolicy(), STAMP_MS)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_marks_leave_the_sign_and_the_low_byte_alone():
    assert marks.MARKS & 0x80FF == 0
