"""Compaction's two walks over stored batches: noting keys, and keeping the newest records (I35).

Theory of operation. `note_batches` enters the key and offset of every record into a `KeyOffsets`.
`sift_batches` then copies the surviving batches. Both take a window of a segment, go from batch to
batch without creating an object per batch, and verify each batch's checksum. They return `OTHER`
for a batch that the caller must handle: it is compressed, or only some of its records survive, or
it must be kept although it is empty, or it belongs to a transaction. For those batches there are
`note_records` and `sift_records`, which work on a records section.

A record below `clean_end` is dropped if a newer one of its key was noted. A tombstone (a null
value) that is the newest of its key is dropped once its batch's delete horizon has passed. The
horizon is the batch's base timestamp if attribute bit 6 is set (KIP-534); a batch with a tombstone
that was noted in this cleaning and has no horizon is `OTHER`, so that it gets one. A record without
a key is kept.

Errors are ValueError; callers give them a code. `checksum` is CRC32C, passed as an argument because
this package imports nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from tidemill.hot import byte_copy
from tidemill.hot.key_offsets import KeyOffsets
from tidemill.hot.record_walk import index
from tidemill.hot.varint import size as varint_bytes
from tidemill.hot.varint import write as write_varint

__all__ = [
    "DONE",
    "FULL",
    "OTHER",
    "Sift",
    "note_batches",
    "note_records",
    "sift_batches",
    "sift_records",
]

Buffer = bytes | bytearray | memoryview

# What ended a walk.
DONE = 0  # no further whole batch begins here
OTHER = 1  # the caller must handle the batch at the position
FULL = 2  # the table has no room for the record at the returned offset

# Attribute bits and bounds of a batch of magic 2; the header has 61 bytes.
_CODEC = 0x07
_TRANSACTIONAL = 0x10
_MARKS = 0x6000  # veiled, ours: copied whole
_CONTROL = 0x20
_HAS_HORIZON = 0x40
_CHUNK_RECORDS = 512
"""Records that are indexed at a time: 36 KB."""
_SIGN_32 = 0x8000_0000
_SIGN_64 = 0x8000_0000_0000_0000
_INT64_MIN = -0x8000_0000_0000_0000
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF

# What happens to a record.
_GOES = 0
_STAYS = 1
_STAYS_AS_TOMBSTONE = 2


class Sift:
    """What a cleaning keeps, and what the latest `sift_batches` copied unchanged."""

    def __init__(self, keys: KeyOffsets, noted_from: int, clean_end: int, now_ms: int) -> None:
        self.keys = keys
        self.noted_from = noted_from
        self.clean_end = clean_end
        self.now_ms = now_ms
        self.kept: frozenset[int] = frozenset()
        """Base offsets of batches that are kept even if they are empty."""
        self.next_offset = 0
        self.records_dropped = 0
        self.copied_offset = -1
        self.copied_timestamp = -1
        self.table = array("q", bytes(8 * 9 * _CHUNK_RECORDS))


def note_batches(
    keys: KeyOffsets,
    view: memoryview,
    start: int,
    end: int,
    next_offset: int,
    from_offset: int,
    checksum: Callable[[memoryview], int],
) -> tuple[int, int, int]:
    """Enter the records of whole batches in `view[start:end]`: (position, next offset, outcome).

    Records below `from_offset` were noted before and would only take up room.
    """
    if not 0 <= start <= end <= len(view):
        raise ValueError("range outside the buffer")
    buf = view
    position = start
    while end - position >= 61:
        size = 12 + _int32(buf, position + 8)
        if size > end - position:
            break
        base_offset = _check_batch(buf, position, size, next_offset)
        if checksum(view[position + 21 : position + size]) != _unsigned(buf, position + 17, 4):
            raise ValueError(f"checksum mismatch in the batch of offset {base_offset}")
        attributes = _unsigned(buf, position + 21, 2)
        if attributes & (_CODEC | _CONTROL | _TRANSACTIONAL | _MARKS):
            return position, next_offset, 1
        full_at = note_records(
            keys,
            buf,
            position + 61,
            position + size,
            _int32(buf, position + 57),
            base_offset,
            from_offset,
        )
        if full_at >= 0:
            return position, full_at, 2
        next_offset = base_offset + _int32(buf, position + 23) + 1
        position += size
    return position, next_offset, 0


def note_records(
    keys: KeyOffsets,
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    from_offset: int,
) -> int:
    """Enter the records of one batch; the offset of the first that found no room, or -1."""
    table = array("q", bytes(8 * 9 * min(count, _CHUNK_RECORDS)))
    rows = table
    position = start
    done = 0
    while done < count:
        chunk = min(count - done, _CHUNK_RECORDS)
        position = index(buf, position, end, done, chunk, rows)
        for row in range(0, chunk * 9, 9):
            offset = base_offset + rows[row]
            if (
                rows[row + 3] >= 0
                and offset >= from_offset
                and not keys.put(buf, rows[row + 2], rows[row + 3], offset)
            ):
                return offset
        done += chunk
    return -1


def sift_batches(
    sift: Sift,
    view: memoryview,
    start: int,
    end: int,
    stop: int,
    out: bytearray,
    out_at: int,
    checksum: Callable[[memoryview], int],
) -> tuple[int, int, int]:
    """Copy the batches of `view[start:end]` that are kept unchanged: (position, out_at, outcome).

    No batch that begins at or after `stop` is copied. `sift.copied_offset` is the base offset of
    the first copied batch, -1 if there is none, and `sift.copied_timestamp` the greatest of their
    max timestamps.
    """
    if not 0 <= start <= end <= len(view) or not 0 <= out_at <= len(out):
        raise ValueError("range outside the buffer")
    buf = view
    target = memoryview(out)
    position = start
    sift.copied_offset = -1
    sift.copied_timestamp = -1
    while end - position >= 61 and position < stop:
        size = 12 + _int32(buf, position + 8)
        if size > end - position:
            break
        base_offset = _check_batch(buf, position, size, sift.next_offset)
        if checksum(view[position + 21 : position + size]) != _unsigned(buf, position + 17, 4):
            raise ValueError(f"checksum mismatch in the batch of offset {base_offset}")
        attributes = _unsigned(buf, position + 21, 2)
        count = _int32(buf, position + 57)
        stays = True
        if base_offset < sift.clean_end:
            if attributes & (_CODEC | _CONTROL | _TRANSACTIONAL | _MARKS):
                return position, out_at, 1
            has_horizon = attributes & _HAS_HORIZON != 0
            is_expired = has_horizon and _int64(buf, position + 27) <= sift.now_ms
            needs_horizon = not has_horizon and base_offset >= sift.noted_from
            stayed, marks = _count(
                sift, buf, position + 61, position + size, count, base_offset, is_expired
            )
            if marks > 0 and needs_horizon:
                return position, out_at, 1
            if stayed == 0:
                stays = False
                if base_offset in sift.kept:
                    if count > 0:
                        return position, out_at, 1
                    stays = True
            elif stayed < count:
                return position, out_at, 1
        if stays:
            byte_copy.copy_bytes(target, out_at, buf, position, size)
            out_at += size
            if sift.copied_offset < 0:
                sift.copied_offset = base_offset
            timestamp = _int64(buf, position + 35)
            sift.copied_timestamp = max(sift.copied_timestamp, timestamp)
        else:
            sift.records_dropped += count
        sift.next_offset = base_offset + _int32(buf, position + 23) + 1
        position += size
    return position, out_at, 0


def sift_records(
    sift: Sift,
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    is_expired: bool,
    timestamp_shift: int,
    out: bytearray,
) -> tuple[int, int, int, int]:
    """Copy the surviving records of one batch into `out`, which has room for them.

    `timestamp_shift` is added to their timestamp deltas. Returns how many survived, the bytes they
    take, their highest timestamp delta before the shift, and how many of them are tombstones.
    """
    target = memoryview(out)
    rows = sift.table
    stayed = 0
    marks = 0
    highest = 0
    out_at = 0
    position = start
    done = 0
    while done < count:
        chunk = min(count - done, _CHUNK_RECORDS)
        record_at = position
        position = index(buf, position, end, done, chunk, rows)
        for row in range(0, chunk * 9, 9):
            record_end = rows[row + 8]
            fate = _fate(sift, buf, rows, row, base_offset, is_expired)
            if fate != _GOES:
                if fate == _STAYS_AS_TOMBSTONE:
                    marks += 1
                delta = rows[row + 1]
                if stayed == 0 or delta > highest:
                    highest = delta
                stayed += 1
                if timestamp_shift == 0:
                    byte_copy.copy_bytes(target, out_at, buf, record_at, record_end - record_at)
                    out_at += record_end - record_at
                else:
                    out_at = _put_shifted(
                        out, out_at, buf, record_at, record_end, _shifted(delta, timestamp_shift)
                    )
            record_at = record_end
        done += chunk
    return stayed, out_at, highest, marks


def _put_shifted(
    out: bytearray, out_at: int, buf: Buffer, record_at: int, record_end: int, delta: int
) -> int:
    """Write one record with another timestamp delta; returns where it ends."""
    target = memoryview(out)
    attributes_at = _after_varint(buf, record_at)
    rest_at = _after_varint(buf, attributes_at + 1)
    size = 1 + varint_bytes(delta) + record_end - rest_at
    out_at = write_varint(out, out_at, size)
    target[out_at] = buf[attributes_at]
    out_at = write_varint(out, out_at + 1, delta)
    byte_copy.copy_bytes(target, out_at, buf, rest_at, record_end - rest_at)
    return out_at + record_end - rest_at


def _shifted(delta: int, shift: int) -> int:
    if (shift < 0 and delta < _INT64_MIN - shift) or (shift > 0 and delta > _INT64_MAX - shift):
        raise ValueError("a timestamp leaves 64 bits")
    return delta + shift


def _after_varint(buf: Buffer, position: int) -> int:
    """The position after the varint here, which was read before."""
    while buf[position] >= 0x80:
        position += 1
    return position + 1


def _count(
    sift: Sift, buf: Buffer, start: int, end: int, count: int, base_offset: int, is_expired: bool
) -> tuple[int, int]:
    """How many records of a batch survive, and how many of those are tombstones."""
    rows = sift.table
    stayed = 0
    marks = 0
    position = start
    done = 0
    while done < count:
        chunk = min(count - done, _CHUNK_RECORDS)
        position = index(buf, position, end, done, chunk, rows)
        for row in range(0, chunk * 9, 9):
            fate = _fate(sift, buf, rows, row, base_offset, is_expired)
            if fate != _GOES:
                stayed += 1
            if fate == _STAYS_AS_TOMBSTONE:
                marks += 1
        done += chunk
    return stayed, marks


def _fate(
    sift: Sift,
    buf: Buffer,
    rows: array[int] | memoryview,
    row: int,
    base_offset: int,
    is_expired: bool,
) -> int:
    offset = base_offset + rows[row]
    key_bytes = rows[row + 3]
    if key_bytes < 0 or offset >= sift.clean_end:
        return _STAYS
    if sift.keys.newest(buf, rows[row + 2], key_bytes) > offset:
        return _GOES
    if rows[row + 5] >= 0:
        return _STAYS
    return _GOES if is_expired else _STAYS_AS_TOMBSTONE


def _check_batch(buf: Buffer, position: int, size: int, next_offset: int) -> int:
    """The base offset of the batch of `size` bytes here, after checks of its header."""
    base_offset = _int64(buf, position)
    if size < 61 or buf[position + 16] != 2 or _int32(buf, position + 23) < 0:
        raise ValueError(f"no batch header at byte {position}")
    if base_offset < next_offset:
        raise ValueError(f"offset {base_offset} where {next_offset} is the next")
    if _int32(buf, position + 57) < 0:
        raise ValueError(f"the batch of offset {base_offset} has a negative record count")
    return base_offset


def _int32(buf: Buffer, position: int) -> int:
    raw = _unsigned(buf, position, 4)
    return (raw ^ _SIGN_32) - _SIGN_32


def _int64(buf: Buffer, position: int) -> int:
    raw = _unsigned(buf, position, 8)
    return (raw ^ _SIGN_64) - _SIGN_64


def _unsigned(buf: Buffer, position: int, size: int) -> int:
    """A big-endian integer of `size` bytes."""
    raw = 0
    for at in range(position, position + size):
        byte = buf[at]
        raw = (raw << 8) | byte
    return raw
