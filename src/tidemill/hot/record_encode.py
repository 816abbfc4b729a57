"""Encodes records into the records section of a batch: the inverse of `record_walk.rows`.

Two passes: the first measures each record, so that the section is allocated once at its final
size, the second writes. Offsets and timestamps are deltas against the batch's bases.
"""

from __future__ import annotations

from array import array

from tidemill.hot.varint import size as varint_bytes
from tidemill.hot.varint import write as write_varint

__all__ = ["Header", "Row", "encode"]

Header = tuple[bytes, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None, list[Header]]


def encode(rows: list[Row]) -> bytearray:
    """The section for `rows` of (offset delta, timestamp delta, key, value, headers).

    Raises OverflowError if a delta does not fit its type.
    """
    count = len(rows)
    sizes = array("q", bytes(8 * count))
    total = 0
    for record in range(count):
        size = _record_bytes(rows[record])
        sizes[record] = size
        total += size + varint_bytes(size)
    section = bytearray(total)
    position = 0
    for record in range(count):
        position = write_varint(section, position, sizes[record])
        position = _put_record(section, position, rows[record])
    return section


def _record_bytes(row: Row) -> int:
    """Bytes of one record after its length."""
    offset_delta, timestamp_delta, key, value, headers = row
    if not -0x8000_0000 <= offset_delta <= 0x7FFF_FFFF:
        raise OverflowError("offset delta does not fit 32 bits")
    if not -0x8000_0000_0000_0000 <= timestamp_delta <= 0x7FFF_FFFF_FFFF_FFFF:
        raise OverflowError("timestamp delta does not fit 64 bits")
    size = 1 + varint_bytes(timestamp_delta) + varint_bytes(offset_delta)
    size += _field_bytes(key) + _field_bytes(value) + varint_bytes(len(headers))
    for name, content in headers:
        size += _field_bytes(name) + _field_bytes(content)
    return size


def _put_record(out: bytearray, position: int, row: Row) -> int:
    offset_delta, timestamp_delta, key, value, headers = row
    # The attributes byte stays 0: no attribute of a record is defined.
    position = write_varint(out, position + 1, timestamp_delta)
    position = write_varint(out, position, offset_delta)
    position = _put_field(out, position, key)
    position = _put_field(out, position, value)
    position = write_varint(out, position, len(headers))
    for name, content in headers:
        position = _put_field(out, position, name)
        position = _put_field(out, position, content)
    return position


def _field_bytes(field: bytes | None) -> int:
    if field is None:
        return 1
    size = len(field)
    return varint_bytes(size) + size


def _put_field(out: bytearray, position: int, field: bytes | None) -> int:
    if field is None:
        return write_varint(out, position, -1)
    size = len(field)
    position = write_varint(out, position, size)
    out[position : position + size] = field
    return position + size
