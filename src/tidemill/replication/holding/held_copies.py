"""The bytes of held records: read from the log, and written again as a release or a carried copy.

A *release* is what consumers get: the record without the headers that held it, with those that say
what it was. Its time is that of the release, or retention might take it at once. A *carried copy*
takes the place of an older copy: it keeps what held the record, and says which ticket it is and
when it is due.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import VIEW_PACKED_BYTES_MIN
from tidemill.delivery.holds.hold import Hold
from tidemill.delivery.holds.hold_headers import (
    AXIS,
    AXIS_NAMES,
    DELAY_MS,
    DELIVER_AT,
    DUE,
    NEXT,
    SCHEDULE,
    TICKET,
)
from tidemill.hot import record_encode, record_walk
from tidemill.hot.record_walk import (
    HEADER_COUNT,
    HEADERS_AT,
    KEY_AT,
    KEY_BYTES,
    OFFSET_DELTA,
    RECORD_END,
    ROW_FIELDS,
    TIMESTAMP_DELTA,
    VALUE_AT,
    VALUE_BYTES,
)
from tidemill.wire import compression, header_names
from tidemill.wire.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    CorruptBatch,
    read_header,
    records_section,
    write_header,
)
from tidemill.wire.marks import OURS, is_ours, record_base, veil

__all__ = ["HeldCopy", "StoredBatch", "build_carried", "build_release"]

SENT_AT = header_names.SENT_AT.encode()
_ANSWERS = frozenset({TICKET, DUE, NEXT, AXIS, SENT_AT})
"""What only the broker says: those of a client, from a record that was released before, go."""
_REQUESTS = frozenset({DELIVER_AT, DELAY_MS, SCHEDULE})
_CHUNK_RECORDS = 256


class HeldCopy(NamedTuple):
    """The content of a held record."""

    key: bytes | None
    value: bytes | None
    headers: list[record_encode.Header]
    """As they are stored."""
    sent_at_ms: int


@final
class StoredBatch:
    """One stored batch with held records, opened."""

    def __init__(self, batch: memoryview) -> None:
        self.header: BatchHeader = read_header(batch)
        self._section = bytes(records_section(batch, self.header))
        try:
            _, highest, _, _ = record_walk.walk(
                self._section, 0, len(self._section), self.header.record_count
            )
        except ValueError as error:
            raise CorruptBatch(f"offset {self.header.base_offset}: {error}") from None
        self._base_timestamp = record_base(self.header, highest)

    def copies(self, offsets: Iterable[int]) -> dict[int, HeldCopy]:
        """The records at these offsets."""
        wanted = {offset - self.header.base_offset: offset for offset in offsets}
        found: dict[int, HeldCopy] = {}
        table = array("q", bytes(8 * ROW_FIELDS * _CHUNK_RECORDS))
        position, data = 0, self._section
        for first in range(0, self.header.record_count, _CHUNK_RECORDS):
            count = min(_CHUNK_RECORDS, self.header.record_count - first)
            position = record_walk.index(data, position, len(data), first, count, table)
            for row in range(0, count * ROW_FIELDS, ROW_FIELDS):
                offset = wanted.get(table[row + OFFSET_DELTA])
                if offset is not None:
                    found[offset] = self._copy(table, row)
            if len(found) == len(wanted):
                return found
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a held record is not where it was")

    def _copy(self, table: array[int], row: int) -> HeldCopy:
        data = self._section
        headers = record_walk.read_headers(
            data, table[row + HEADERS_AT], table[row + RECORD_END], table[row + HEADER_COUNT]
        )
        return HeldCopy(
            _field(data, table[row + KEY_AT], table[row + KEY_BYTES]),
            _field(data, table[row + VALUE_AT], table[row + VALUE_BYTES]),
            headers,
            self._sent_at(headers, table[row + TIMESTAMP_DELTA]),
        )

    def _sent_at(self, headers: list[record_encode.Header], delta: int) -> int:
        header = self.header
        if is_ours(header):  # a carried copy says so
            stored = dict(headers).get(SENT_AT)
            if stored is not None:
                return int(stored)
        if header.attributes & LOG_APPEND_TIME:
            return header.max_timestamp
        return self._base_timestamp + delta


def _field(data: bytes, at: int, size: int) -> bytes | None:
    return None if size < 0 else data[at : at + size]


def build_release(
    released: Sequence[tuple[Hold, HeldCopy, int | None]], *, now_ms: int, codec: int
) -> bytearray:
    """One batch of ours that delivers these holds; a tick of a schedule says when the next is."""
    rows: list[record_encode.Row] = []
    for delta, (hold, copy, next_ms) in enumerate(released):
        headers = _without(copy.headers, _ANSWERS | _REQUESTS)
        headers += _facts(hold.ticket, hold.due_ms, copy)
        if next_ms is not None:
            headers.append((NEXT, b"%d" % next_ms))
        rows.append((delta, 0, copy.key, copy.value, headers))
    return _batch(rows, now_ms=now_ms, codec=codec)


def build_carried(
    carried: Sequence[tuple[Hold, HeldCopy]], *, stamp_ms: int, now_ms: int, codec: int
) -> bytearray:
    """One veiled batch of ours in which these holds lie from now on."""
    rows: list[record_encode.Row] = []
    for delta, (hold, copy) in enumerate(carried):
        headers = _without(copy.headers, _ANSWERS)
        headers += _facts(hold.ticket, hold.due_ms, copy)
        headers.append((AXIS, AXIS_NAMES[hold.axis]))
        rows.append((delta, 0, copy.key, copy.value, headers))
    batch = _batch(rows, now_ms=now_ms, codec=codec)
    veil(batch, read_header(batch), stamp_ms=stamp_ms)
    return batch


def _without(
    headers: list[record_encode.Header], names: frozenset[bytes]
) -> list[record_encode.Header]:
    return [header for header in headers if header[0] not in names]


def _facts(ticket: int, due_ms: int, copy: HeldCopy) -> list[record_encode.Header]:
    return [
        (TICKET, b"%d" % ticket),
        (DUE, b"%d" % due_ms),
        (SENT_AT, b"%d" % copy.sent_at_ms),
    ]


def _batch(rows: list[record_encode.Row], *, now_ms: int, codec: int) -> bytearray:
    section = record_encode.encode(rows)
    if len(section) <= VIEW_PACKED_BYTES_MIN:
        codec = compression.NONE
    packed = compression.compress(codec, section)
    out = bytearray(HEADER_BYTES)
    out += packed
    write_header(
        out,
        record_count=len(rows),
        last_offset_delta=len(rows) - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        attributes=codec | OURS,
    )
    return out
