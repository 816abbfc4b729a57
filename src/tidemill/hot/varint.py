"""Kafka's variable-length integers: zigzag, seven bits per byte, least significant first."""

from __future__ import annotations

__all__ = ["VARINT_BYTES_MAX", "VARLONG_BYTES_MAX", "read", "size", "write"]

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10

# Named, since a literal beyond 31 bits would be a Python object in the compiled code.
_INT64_MIN = -0x8000_0000_0000_0000
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF


def read(buf: bytes | bytearray | memoryview, start: int, end: int, bits: int) -> tuple[int, int]:
    """Read an integer of `bits` (32 or 64) from `buf[start:end]`: its value and where it ends.

    Raises ValueError if it is cut, or longer than such an integer can be.
    """
    if not 0 <= start <= end <= len(buf) or not 0 < bits <= 64:
        raise ValueError("range outside the buffer")
    raw = 0
    shift = 0
    position = start
    while position < end and shift < bits:
        byte = buf[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift + 7 > bits and byte >> (bits - shift):
                break
            value = (raw >> 1) ^ -(raw & 1)
            return value, position
        shift += 7
    raise ValueError("varint is cut or too long")


def size(value: int) -> int:
    """How many bytes `write` takes for `value`; OverflowError beyond 64 bits."""
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise OverflowError("value does not fit 64 bits")
    raw = (value << 1) ^ (value >> 63)
    count = 1
    while raw >= 0x80:
        raw >>= 7
        count += 1
    return count


def write(out: bytearray, position: int, value: int) -> int:
    """Write `value` into `out` at `position`; returns where it ends.

    The caller has made room for `size(value)` bytes: IndexError if it has not.
    """
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise OverflowError("value does not fit 64 bits")
    if not 0 <= position < len(out):
        raise IndexError("no room for the integer")
    raw = (value << 1) ^ (value >> 63)
    while raw >= 0x80:
        out[position] = (raw & 0x7F) | 0x80
        raw >>= 7
        position += 1
    out[position] = raw
    return position + 1
