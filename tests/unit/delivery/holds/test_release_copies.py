"""A release that is copied is the one that is made of opened records."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.delivery.holds.copies.held_records import read_held
from tidemill.delivery.holds.copies.own_batches import HeldCopy, release_batch
from tidemill.delivery.holds.copies.release_copies import release_copies
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.wire import compression
from tidemill.wire import header_names as names
from tidemill.wire.batch import HEADER_BYTES, CorruptBatch, read_header, stamp_append_time, verify
from tidemill.wire.marks import veil
from tidemill.wire.records import Record, build_batch, iter_records

NOW_MS = 1_700_000_005_000
_names = st.sampled_from(
    ["a", "", "tidemill.x", names.DELAY_MS, names.MESSAGE_ID, names.TICKET, names.SENT_AT, "t"]
)
_headers = st.lists(st.tuples(_names, st.none() | st.binary(max_size=80)), max_size=5)
_records = st.builds(
    lambda value, key, headers, time: Record(value, key, headers=headers, timestamp=time),
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=5),
    _headers,
    st.integers(0, 1 << 41),
)


@given(
    sent=st.lists(_records, min_size=1, max_size=8),
    codec=st.sampled_from([compression.NONE, compression.ZSTD]),
    is_append_time=st.booleans(),
    data=st.data(),
)
def test_copying_makes_the_same_batch_as_opening(sent, codec, is_append_time, data):
    batch = build_batch(sent, base_offset=100, codec=codec)
    if is_append_time:
        stamp_append_time(memoryview(batch), NOW_MS - 9)
    veil(batch, read_header(batch), stamp_ms=5)
    header = read_header(batch)
    offsets = data.draw(st.permutations(range(100, 100 + len(sent))))
    offsets = offsets[: data.draw(st.integers(1, len(sent)))]
    records = {one.offset: one for one in read_held(batch, header, set(offsets))}
    holds = [Hold(offset, 77, Axis.WALL, offset, _size(sent, offset)) for offset in offsets]
    opened = release_batch(
        [HeldCopy(hold, records[hold.offset]) for hold in holds], now_ms=NOW_MS, codec=codec
    )
    copied = release_copies(
        [(hold, batch) for hold in holds],
        now_ms=NOW_MS,
        codec=codec,
        opened_bytes_max=data.draw(st.sampled_from([0, 1 << 20])),
    )
    verify(memoryview(copied), read_header(copied))
    assert list(iter_records(copied)) == list(iter_records(opened))
    assert copied == opened


def _size(sent: list[Record], offset: int) -> int:
    """Of a record in a batch of its own, in which its offset is shorter than anywhere."""
    return len(build_batch([sent[offset - 100]])) - HEADER_BYTES


def test_a_release_from_many_batches_that_open_to_megabytes_needs_few_of_them_at_once():
    stored = []
    for number in range(30):
        large = Record(bytes(4 << 20), timestamp=1)
        held = Record(b"held", headers=[(names.DELAY_MS, b"5")], timestamp=1)
        batch = build_batch([large, held], base_offset=2 * number, codec=compression.ZSTD)
        veil(batch, read_header(batch), stamp_ms=5)
        ticket = 2 * number + 1
        stored.append((Hold(ticket, 77, Axis.WALL, ticket, 40), batch))
    tracemalloc.start()
    try:
        released = release_copies(stored, now_ms=NOW_MS)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [record.value for record in iter_records(released)] == [b"held"] * 30
    assert peak_bytes < 48 << 20


def test_a_record_that_is_not_in_its_batch_is_an_error():
    batch = build_batch([Record(b"v", timestamp=1)])
    hold = Hold(5, 77, Axis.WALL, 5, 20)
    with pytest.raises(CorruptBatch, match="not where it was"):
        release_copies([(hold, batch)], now_ms=NOW_MS)
