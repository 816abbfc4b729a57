"""Releases of many holds, copied from the batches that they lie in without an object per record.

The result is what `own_batches.release_batch` makes of the same records; it is for holds that lie
where their producer put them and are no schedules, which is almost all.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import final

from tidemill.delivery.holds.copies.own_batches import DROPPED_BY_RELEASE
from tidemill.delivery.holds.hold import Hold
from tidemill.hot.record_walk import (
    HEADERS_AT,
    KEY_AT,
    RECORD_END,
    ROW_FIELDS,
    TIMESTAMP_DELTA,
    VALUE_AT,
)
from tidemill.hot.release_encode import OVERHEAD_BYTES, find_records, put_record
from tidemill.wire import compression
from tidemill.wire import header_names as names
from tidemill.wire.batch import (
    HEADER_BYTES,
    CorruptBatch,
    attributes_of,
    read_header,
    records_section,
    write_header,
)
from tidemill.wire.marks import mark_ours, record_base

__all__ = ["can_copy", "release_copies"]

Buffer = bytes | bytearray | memoryview

_OPENED_BYTES_MAX = 8 * 1024 * 1024
_DROPPED = frozenset(name.encode() for name in DROPPED_BY_RELEASE)


def _named(name: str) -> bytes:
    """How a header begins: size and name. Sizes below 64 take a byte, which has them doubled."""
    return bytes([2 * len(name)]) + name.encode()


_SENT_AT, _TICKET, _DUE = _named(names.SENT_AT), _named(names.TICKET), _named(names.DUE)
_SIZES = [bytes([2 * size]) for size in range(24)]
"""Of a number in digits."""


def can_copy(hold: Hold) -> bool:
    """Whether the record of a hold is released without being opened."""
    return hold.schedule is None and hold.offset == hold.ticket


def release_copies(
    stored: Sequence[tuple[Hold, Buffer]],
    *,
    now_ms: int,
    codec: int = compression.NONE,
    opened_bytes_max: int = _OPENED_BYTES_MAX,
) -> bytearray:
    """The batch that delivers these holds, each with the batch that it lies in. CorruptBatch."""
    sources = _open_sources(stored, opened_bytes_max)
    size_bytes = sum([hold.size_bytes for hold, _ in stored])
    out = bytearray(size_bytes + len(stored) * (OVERHEAD_BYTES + _ADDED_BYTES_MAX))
    end = 0
    for delta, (hold, batch) in enumerate(stored):
        source = sources[id(batch)]
        place = source.places[hold.offset]
        added = _answers(source.sent_at(place), hold)
        end = put_record(out, end, source.section, source.found, place, delta, added, 3, _DROPPED)
    del out[end:]
    return _marked_batch(out, len(stored), now_ms, codec)


def _answers(sent_at: int, hold: Hold) -> bytes:
    """The headers that a release adds, encoded."""
    sent, ticket, due = b"%d" % sent_at, b"%d" % hold.ticket, b"%d" % hold.due_ms
    sent_bytes, ticket_bytes, due_bytes = _SIZES[len(sent)], _SIZES[len(ticket)], _SIZES[len(due)]
    return b"".join(
        (_SENT_AT, sent_bytes, sent, _TICKET, ticket_bytes, ticket, _DUE, due_bytes, due)
    )


_ADDED_BYTES_MAX = len(_SENT_AT + _TICKET + _DUE) + 3 * len(_SIZES)


def _open_sources(
    stored: Sequence[tuple[Hold, Buffer]], opened_bytes_max: int
) -> dict[int, _Source]:
    """The batches by their identity, each opened once.

    A kilobyte of a batch may open to megabytes, of which a release needs one record, and there may
    be hundreds of them: beyond some megabytes only what is needed stays.
    """
    offsets: dict[int, tuple[Buffer, list[int]]] = {}
    for hold, batch in stored:
        offsets.setdefault(id(batch), (batch, []))[1].append(hold.offset)
    sources: dict[int, _Source] = {}
    opened_bytes = 0
    for key, (batch, some) in offsets.items():
        source = sources[key] = _Source(batch, some)
        opened_bytes += len(source.section)
        if opened_bytes > opened_bytes_max:
            opened_bytes -= len(source.section)
            source.keep_found()
    return sources


@final
class _Source:
    """A stored batch, and where the wanted records are in it."""

    def __init__(self, batch: Buffer, offsets: Sequence[int]) -> None:
        view = memoryview(batch)
        header = read_header(view)
        self.section = bytes(records_section(view, header))
        wanted = array("q", sorted(offset - header.base_offset for offset in offsets))
        self.found = array("q", bytes(8 * ROW_FIELDS * len(wanted)))
        try:
            highest = find_records(self.section, header.record_count, wanted, self.found)
        except ValueError as err:
            raise CorruptBatch(f"a held record cannot be read: {err}") from None
        self.places = {header.base_offset + delta: place for place, delta in enumerate(wanted)}
        self._base_timestamp = record_base(header, highest)
        self._is_append_time = header.timestamp_type == "append"

    def keep_found(self) -> None:
        """Forget the other records of the batch."""
        parts: list[bytes] = []
        kept_bytes = 0
        for row in range(0, len(self.found), ROW_FIELDS):
            start, end = self.found[row + KEY_AT], self.found[row + RECORD_END]
            parts.append(self.section[start:end])
            for column in (KEY_AT, VALUE_AT, HEADERS_AT, RECORD_END):
                self.found[row + column] += kept_bytes - start
            kept_bytes += end - start
        self.section = b"".join(parts)

    def sent_at(self, place: int) -> int:
        if self._is_append_time:
            return self._base_timestamp
        return self._base_timestamp + self.found[place * ROW_FIELDS + TIMESTAMP_DELTA]


def _marked_batch(section: bytearray, count: int, now_ms: int, codec: int) -> bytearray:
    packed = compression.compress(codec, section)
    batch = bytearray(HEADER_BYTES)
    batch += packed
    write_header(
        batch,
        attributes=attributes_of(codec, transactional=False, control=False),
        last_offset_delta=count - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        record_count=count,
    )
    mark_ours(batch)
    return batch
