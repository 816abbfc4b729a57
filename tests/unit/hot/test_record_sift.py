from __future__ import annotations

import pytest
from crc32c import crc32c

from tests.support.flavours import FLAVOURS, load
from tidemill.hot.key_offsets import KeyOffsets
from tidemill.wire import compression
from tidemill.wire.batch import HEADER_BYTES, iter_headers, read_header, write_checksum
from tidemill.wire.records import Record, build_batch, iter_records

NOW_MS = 1_000


@pytest.fixture(params=FLAVOURS)
def hot(request):
    return load(request.param, "record_sift")


@pytest.fixture
def keys():
    return KeyOffsets(bytearray(24 * 64), 1)


def batch(base, *pairs, **options):
    records = [Record(value, key, timestamp=base + at) for at, (key, value) in enumerate(pairs)]
    return bytes(build_batch(records, base_offset=base, **options))


def note(hot, keys, data, *, next_offset=0, from_offset=0):
    view = memoryview(data)
    return hot.note_batches(keys, view, 0, len(view), next_offset, from_offset, crc32c)


def sift(hot, keys, data, *, noted_from=0, clean_end=1 << 40, kept=(), now_ms=NOW_MS):
    """Position, what was copied, outcome, and the state."""
    state = hot.Sift(keys, noted_from, clean_end, now_ms)
    state.kept = frozenset(kept)
    out = bytearray(len(data))
    end = len(data)
    found = hot.sift_batches(state, memoryview(data), 0, end, end, out, 0, crc32c)
    position, size, outcome = found
    return position, bytes(out[:size]), outcome, state


def newest(keys, *names):
    return [keys.newest(name, 0, len(name)) for name in names]


def test_every_record_of_plain_batches_is_noted(hot, keys):
    data = batch(0, (b"a", b"1"), (b"b", b"1")) + batch(5, (b"a", b"2"))
    assert note(hot, keys, data) == (len(data), 6, hot.DONE)
    assert newest(keys, b"a", b"b") == [5, 1]


def test_records_without_a_key_are_not_noted(hot, keys):
    note(hot, keys, batch(0, (None, b"1"), (b"", b"1")))
    assert keys.key_count == 1


def test_a_compressed_batch_is_left_to_the_caller(hot, keys):
    first = batch(0, (b"a", b"1"))
    data = first + batch(1, (b"b", b"1"), codec=compression.LZ4)
    assert note(hot, keys, data) == (len(first), 1, hot.OTHER)


@pytest.mark.parametrize("flag", ["transactional", "control"])
def test_transactions_are_left_to_the_caller(hot, keys, flag):
    data = batch(0, (b"a", b"1"), producer_id=1, producer_epoch=0, **{flag: True})
    assert note(hot, keys, data) == (0, 0, hot.OTHER)
    assert keys.key_count == 0
    assert sift(hot, keys, data)[2] == hot.OTHER
    assert sift(hot, keys, data, clean_end=0)[1] == data


def test_a_cut_batch_ends_the_walk(hot, keys):
    whole = batch(0, (b"a", b"1"))
    assert note(hot, keys, whole + batch(1, (b"b", b"1"))[:-1]) == (len(whole), 1, hot.DONE)


def test_noting_stops_at_the_record_that_finds_no_room(hot):
    keys = KeyOffsets(bytearray(24 * 4), 1)
    data = batch(0, *((b"%d" % number, b"v") for number in range(9)))
    assert note(hot, keys, data) == (0, 3, hot.FULL)


def test_records_that_were_noted_before_take_no_room(hot, keys):
    note(hot, keys, batch(0, (b"a", b"1"), (b"b", b"1"), (b"c", b"1")), from_offset=2)
    assert newest(keys, b"a", b"b", b"c") == [-1, -1, 2]


@pytest.mark.parametrize("walk", ["note", "sift"])
def test_a_wrong_checksum_is_refused(hot, keys, walk):
    data = bytearray(batch(0, (b"a", b"1")))
    data[-1] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        (note if walk == "note" else sift)(hot, keys, bytes(data))


@pytest.mark.parametrize("walk", ["note", "sift"])
def test_offsets_that_go_back_are_refused(hot, keys, walk):
    with pytest.raises(ValueError, match="is the next"):
        (note if walk == "note" else sift)(hot, keys, batch(5, (b"a", b"1")) * 2)


@pytest.mark.parametrize(("at", "value"), [(16, 1), (8, 0xFF), (11, 3), (23, 0xFF), (57, 0xFF)])
def test_bytes_that_are_not_a_batch_are_refused(hot, keys, at, value):
    data = bytearray(batch(0, (b"a", b"1")))
    data[at] = value
    if at > 20:
        write_checksum(data)
    with pytest.raises(ValueError, match=r"header|count"):
        note(hot, keys, bytes(data))


@pytest.mark.parametrize(("start", "end"), [(-1, 10), (5, 4), (0, 10_000)])
def test_a_range_outside_the_window_is_refused(hot, keys, start, end):
    view = memoryview(batch(0, (b"a", b"1")))
    with pytest.raises(ValueError, match="outside"):
        hot.note_batches(keys, view, start, end, 0, 0, crc32c)
    state = hot.Sift(keys, 0, 0, 0)
    with pytest.raises(ValueError, match="outside"):
        hot.sift_batches(state, view, start, end, end, bytearray(9_999), 0, crc32c)


def test_a_superseded_batch_is_dropped_and_others_are_copied_unchanged(hot, keys):
    parts = [batch(0, (b"a", b"1")), batch(1, (b"b", b"1")), batch(2, (b"a", b"2"))]
    note(hot, keys, b"".join(parts))
    position, copied, outcome, state = sift(hot, keys, b"".join(parts))
    assert (position, outcome) == (sum(map(len, parts)), hot.DONE)
    assert copied == parts[1] + parts[2]
    assert (state.copied_offset, state.copied_timestamp) == (1, 2)
    assert (state.records_dropped, state.next_offset) == (1, 3)


def test_no_batch_is_copied_at_or_after_the_stop(hot, keys):
    data = batch(0, (b"a", b"1")) + batch(1, (b"b", b"1"))
    state = hot.Sift(keys, 0, 99, NOW_MS)
    found = hot.sift_batches(
        state, memoryview(data), 0, len(data), 1, bytearray(len(data)), 0, crc32c
    )
    assert found == (len(data) // 2, len(data) // 2, hot.DONE)


def test_a_batch_that_loses_some_records_is_left_to_the_caller(hot, keys):
    data = batch(0, (b"a", b"1"), (b"b", b"1"))
    note(hot, keys, data + batch(2, (b"a", b"2")))
    assert sift(hot, keys, data)[:3] == (0, b"", hot.OTHER)


def test_an_empty_batch_that_must_stay_is_left_to_the_caller_once(hot, keys):
    data = batch(0, (b"a", b"1"))
    note(hot, keys, data + batch(1, (b"a", b"2")))
    assert sift(hot, keys, data, kept=[0])[:3] == (0, b"", hot.OTHER)
    empty = bytearray(data[:HEADER_BYTES])
    empty[8:12] = (HEADER_BYTES - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    write_checksum(empty)
    assert sift(hot, keys, bytes(empty), kept=[0])[1] == empty
    assert sift(hot, keys, bytes(empty))[1] == b""


def test_records_after_the_clean_end_stay(hot, keys):
    data = batch(0, (b"a", b"1"))
    note(hot, keys, data + batch(1, (b"a", b"2")))
    assert sift(hot, keys, data, clean_end=0)[1] == data


def test_a_noted_tombstone_without_a_horizon_is_left_to_the_caller(hot, keys):
    data = batch(0, (b"a", None))
    note(hot, keys, data)
    assert sift(hot, keys, data)[2] == hot.OTHER
    assert sift(hot, keys, data, noted_from=1)[1] == data


def with_horizon(data, horizon_ms):
    made = bytearray(data)
    made[22] |= 0x40
    made[27:35] = horizon_ms.to_bytes(8, "big")
    write_checksum(made)
    return bytes(made)


@pytest.mark.parametrize(("horizon_ms", "stays"), [(NOW_MS + 1, True), (NOW_MS, False)])
def test_a_tombstone_stays_until_its_horizon(hot, keys, horizon_ms, stays):
    data = with_horizon(batch(0, (b"a", None)), horizon_ms)
    note(hot, keys, data)
    assert sift(hot, keys, data)[1] == (data if stays else b"")


def sifted_records(hot, keys, data, *, expired=False, shift=0):
    header = read_header(data)
    section = data[HEADER_BYTES:]
    out = bytearray(len(section) + 16 * header.record_count)
    state = hot.Sift(keys, 0, 1 << 40, NOW_MS)
    found = hot.sift_records(
        state,
        section,
        0,
        len(section),
        header.record_count,
        header.base_offset,
        expired,
        shift,
        out,
    )
    return found, bytes(out[: found[1]])


def test_single_records_of_a_batch_are_dropped(hot, keys):
    data = batch(10, (b"a", b"1"), (b"b", None), (b"c", b"3"))
    note(hot, keys, data + batch(20, (b"a", b"2")))
    (stayed, size, highest, marks), kept = sifted_records(hot, keys, data)
    assert (stayed, size, highest, marks) == (2, len(kept), 2, 1)
    assert data.endswith(kept)
    (stayed, _, highest, marks), kept = sifted_records(hot, keys, data, expired=True)
    assert (stayed, highest, marks) == (1, 2, 0)


@pytest.mark.parametrize("shift", [1, -1, 10**9, -(10**15), -(2**62)])
def test_timestamps_can_be_relative_to_another_base(hot, keys, shift):
    data = batch(0, (b"a" * 70, b"1" * 200), (b"b", None))
    (stayed, size, _, _), section = sifted_records(hot, keys, data, shift=shift)
    moved = bytearray(data[:HEADER_BYTES] + section)
    moved[8:12] = (len(moved) - 12).to_bytes(4, "big")
    moved[27:35] = (read_header(data).base_timestamp - shift).to_bytes(8, "big", signed=True)
    assert (stayed, size) == (2, len(section))
    assert list(iter_records(moved)) == list(iter_records(data))


@pytest.mark.parametrize("shift", [2**63 - 1, -(2**63)])
def test_a_timestamp_beyond_64_bits_is_refused(hot, keys, shift):
    records = [Record(b"", b"k", timestamp=at) for at in (5, 5 + (1 if shift > 0 else -1))]
    data = bytes(build_batch(records))
    with pytest.raises(ValueError, match="64 bits"):
        sifted_records(hot, keys, data, shift=shift)


def test_a_batch_with_more_records_than_one_table_is_walked_whole(hot):
    keys = KeyOffsets(bytearray(24 * 4_000), 1)
    data = batch(0, *((b"%d" % number, b"v") for number in range(1_300)))
    assert note(hot, keys, data) == (len(data), 1_300, hot.DONE)
    assert sift(hot, keys, data)[1] == data
    (stayed, _, _, _), kept = sifted_records(hot, keys, data)
    assert stayed == 1_300
    assert kept == data[HEADER_BYTES:]
    assert len(list(iter_headers(data))) == 1
