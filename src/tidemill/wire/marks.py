"""The two marks of a batch: attribute bits that only a broker sets.

A *veiled* batch has records that consumers see through the lens only: held records, commands. A
batch of *ours* was made by the broker; only there do the headers `tidemill.ticket`, `due` and
`next` count, since whoever forwards a record forwards its headers too.

    veiled  ours   what it is                                    consumers get
    x       -      a client's batch with a held record           its other records, by the lens
    -       x      a release                                     the stored bytes
    x       x      holds that were carried to the log's end      what the lens shows

Java reads the low byte of the attributes and other clients mask it, so *ours* may reach them;
*veiled* never does. Bit 15 is the sign of the int16, which some clients would see.

A veiled batch has the leader's *stamp* in the place of its base timestamp: the steady time at which
the batch was taken in. Everything else stays as the client sent it, so the time of a record is no
longer base plus delta but `record_base` plus delta.
"""

from __future__ import annotations

from struct import Struct

from tidemill.wire.batch import ATTRIBUTES_AT, LOG_APPEND_TIME, BatchHeader, write_checksum

__all__ = [
    "MARKS",
    "OURS",
    "VEILED",
    "is_marked",
    "is_ours",
    "is_veiled",
    "mark_ours",
    "record_base",
    "stamp_of",
    "veil",
]

OURS = 1 << 13
VEILED = 1 << 14
MARKS = OURS | VEILED

_ATTRIBUTES = Struct(">h")
_BASE_TIMESTAMP_AT = 27
_TIMESTAMP = Struct(">q")


def is_veiled(header: BatchHeader) -> bool:
    """Whether consumers may see the batch only through the lens."""
    return header.attributes & VEILED != 0


def is_ours(header: BatchHeader) -> bool:
    """Whether the broker made the batch."""
    return header.attributes & OURS != 0


def is_marked(header: BatchHeader) -> bool:
    """Whether the batch has either mark."""
    return header.attributes & MARKS != 0


def veil(view: memoryview | bytearray, header: BatchHeader, *, stamp_ms: int) -> None:
    """Mark the one batch in `view` as veiled and write its stamp; `header` follows.

    The records, their offsets and the max timestamp stay; the checksum is written again.
    """
    header.attributes |= VEILED
    header.base_timestamp = stamp_ms
    _ATTRIBUTES.pack_into(view, ATTRIBUTES_AT, header.attributes)
    _TIMESTAMP.pack_into(view, _BASE_TIMESTAMP_AT, stamp_ms)
    header.crc = write_checksum(view)


def mark_ours(view: memoryview | bytearray) -> None:
    """Mark the one batch in `view` as made by the broker."""
    (attributes,) = _ATTRIBUTES.unpack_from(view, ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(view, ATTRIBUTES_AT, attributes | OURS)
    write_checksum(view)


def stamp_of(header: BatchHeader) -> int:
    """The leader's steady time when it took in this veiled batch."""
    assert header.attributes & VEILED, "only a veiled batch has a stamp"
    return header.base_timestamp


def record_base(header: BatchHeader, highest_delta: int) -> int:
    """What the timestamp deltas of the records add to; `highest_delta` is the highest of them.

    The stamp replaced the base of a veiled batch, but not the max timestamp, which validation made
    agree with the records. With append time every record has the max timestamp, whatever its delta
    is: nobody has checked that one, so it must not be counted with.
    """
    if not is_veiled(header):
        return header.base_timestamp
    if header.attributes & LOG_APPEND_TIME:
        return header.max_timestamp
    return header.max_timestamp - highest_delta
