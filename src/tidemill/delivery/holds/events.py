"""What a batch means for the holds of its partition: a function of its bytes alone.

    batch                  record                                  event
    veiled, a client's     `deliver-at`, `delay-ms`, `schedule`    Opened: its offset is its ticket
                           `command=cancel`, `target`              Closed
                           `command=move`, `target`, a due time    Moved
    ours, veiled           the same requests, `ticket due axis`    Carried: a newer copy
    ours                   `ticket`                                Closed: released
                           `ticket next`                           Moved: a tick of a schedule
    control                a marker                                TransactionEnded

Many records of a batch (`MANY_MIN`) that say the same become one event: `OpenedMany`, `ClosedMany`.

A client's own `ticket`, `due`, `axis` and `next` are data. No clock is read here and no topic key:
a replica that reads the same bytes years later finds the same events.

Opens single records, of marked batches only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.delivery.holds.hold import DUE_NEVER, Axis, Hold
from tidemill.delivery.holds.hold_columns import MANY_MIN, HoldColumns
from tidemill.delivery.holds.hold_headers import (
    CANCEL,
    COMMAND,
    DUE,
    MESSAGE_ID,
    MOVE,
    NEXT,
    SCHEDULE,
    TICKET,
    Headers,
    Target,
    is_held,
    read_axis,
    read_due,
    read_number,
    read_target,
)
from tidemill.hot.hold_scan import (
    DELAY,
    ID_AT,
    ID_BYTES,
    KIND,
    NUMBER,
    OTHER,
    PLAIN,
    SIZE,
    scan_requests,
    scan_tickets,
    take_stretch,
)
from tidemill.hot.hold_scan import TICKET as RELEASED_TICKET
from tidemill.hot.record_walk import (
    HEADER_COUNT,
    HEADERS_AT,
    OFFSET_DELTA,
    RECORD_END,
    ROW_FIELDS,
    index,
    read_headers,
)
from tidemill.wire.batch import BatchHeader, records_section
from tidemill.wire.marks import is_marked, is_ours, is_veiled, stamp_of
from tidemill.wire.transaction_marker import read_marker

__all__ = [
    "Carried",
    "Closed",
    "ClosedMany",
    "HoldEnding",
    "HoldEvent",
    "Moved",
    "Opened",
    "OpenedMany",
    "Stamped",
    "TransactionEnded",
    "concerns_holds",
    "events_of",
    "open_records",
]

Buffer = bytes | bytearray | memoryview

_CHUNK_RECORDS = 4_096
"""Records that are indexed at a time: the table takes 72 bytes for each."""


class HoldEnding(Enum):
    """How a hold ended."""

    RELEASED = "released"
    CANCELLED = "cancelled"


class Stamped(NamedTuple):
    """The leader's steady time when it appended a veiled batch."""

    stamp_ms: int


class Opened(NamedTuple):
    """A client's held record; `producer_id` is set while its transaction decides."""

    hold: Hold
    producer_id: int | None


class OpenedMany(NamedTuple):
    """Many held records of a client, in no transaction."""

    holds: HoldColumns


class Carried(NamedTuple):
    """A copy of an open hold that takes the place of the copy before it."""

    hold: Hold


class Closed(NamedTuple):
    target: Target
    ending: HoldEnding


class ClosedMany(NamedTuple):
    """Many holds that were released."""

    tickets: Sequence[int]


class Moved(NamedTuple):
    """A new due time for an open hold."""

    target: Target
    due_ms: int
    axis: Axis


class TransactionEnded(NamedTuple):
    producer_id: int
    is_commit: bool


HoldEvent = Stamped | Opened | OpenedMany | Carried | Closed | ClosedMany | Moved | TransactionEnded


def concerns_holds(header: BatchHeader) -> bool:
    """Whether a batch can have events: all others need not be read."""
    return is_marked(header) or (header.is_control and header.is_transactional)


def open_records(batch: Buffer, header: BatchHeader) -> bytes:
    """The records of the stored batch that `batch` starts with, if they can have events.

    A kilobyte of a batch may be megabytes of them. KafkaError.
    """
    if header.is_control or not is_marked(header):
        return b""
    return bytes(records_section(memoryview(batch), header))


def events_of(
    batch: Buffer,
    header: BatchHeader,
    *,
    section: bytes | None = None,
    many_min: int = MANY_MIN,
) -> list[HoldEvent]:
    """The events of the stored batch that `batch` starts with, in order.

    `section` has its records, if they are open already.
    """
    view = memoryview(batch)
    if header.is_control:
        if not header.is_transactional:
            return []
        return [TransactionEnded(header.producer_id, read_marker(view, header).is_commit)]
    if not is_marked(header):
        return []
    if section is None:
        section = open_records(view, header)
    try:
        return list(_events_in(section, header, many_min))
    except ValueError as err:
        raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None


def _events_in(section: bytes, header: BatchHeader, many_min: int) -> Iterator[HoldEvent]:
    """Those of a marked batch with these records. ValueError."""
    if is_veiled(header):
        yield Stamped(stamp_of(header))
    chunk_max = min(header.record_count, _CHUNK_RECORDS)
    table = array("q", bytes(8 * ROW_FIELDS * chunk_max))
    position = 0
    for first in range(0, header.record_count, _CHUNK_RECORDS):
        count = min(_CHUNK_RECORDS, header.record_count - first)
        bounds = position, len(section), first, count
        if is_veiled(header) and is_ours(header):
            start, position = position, index(section, *bounds, table)
            yield from _carried(section, header, table, start, count)
        elif is_ours(header):
            position = scan_tickets(section, *bounds, table)
            yield from _released(section, header, table, count, many_min)
        else:
            position, _ = scan_requests(section, *bounds, table)
            yield from _requested(section, header, table, count, many_min)


def _requested(
    section: bytes, header: BatchHeader, table: array[int], count: int, many_min: int
) -> Iterator[HoldEvent]:
    """The events of a client's records, in a table that was scanned for requests."""
    row = 0
    columns = array("q", bytes(8 * 3 * count))
    while row < count:
        start = row
        row, taken, size_bytes, kind, is_rising = take_stretch(
            table, row, count, header.base_offset, stamp_of(header), columns
        )
        if taken:
            holds = HoldColumns(
                Axis.STEADY if kind == DELAY else Axis.WALL,
                tickets=columns[:taken],
                dues=columns[count : count + taken],
                sizes=columns[2 * count : 2 * count + taken],
                ids=_ids(section, table, start, row),
                size_bytes=size_bytes,
                is_rising=is_rising,
            )
            if taken >= many_min and not header.is_transactional:
                yield OpenedMany(holds)
            else:
                producer_id = header.producer_id if header.is_transactional else None
                yield from [Opened(hold, producer_id) for hold in holds]
        if row < count and table[row * ROW_FIELDS + KIND] == OTHER:
            offset, headers = _record(section, header, table, row)
            event = _event_of_client(header, offset, table[row * ROW_FIELDS + SIZE], headers)
            if event is not None:
                yield event
            row += 1


def _ids(section: bytes, table: array[int], start: int, end: int) -> list[bytes | None] | None:
    """The message ids of the held records in these rows; None if there are none."""
    cells = slice(start * ROW_FIELDS + ID_BYTES, end * ROW_FIELDS, ROW_FIELDS)
    if table[cells].count(-1) == end - start:
        return None
    found: list[bytes | None] = []
    for at in range(start * ROW_FIELDS, end * ROW_FIELDS, ROW_FIELDS):
        if table[at + KIND] != PLAIN:
            id_at, size = table[at + ID_AT], table[at + ID_BYTES]
            found.append(section[id_at : id_at + size] if size >= 0 else None)
    return found


def _released(
    section: bytes, header: BatchHeader, table: array[int], count: int, many_min: int
) -> Iterator[HoldEvent]:
    """The events of a release, in a table that was scanned for tickets."""
    kinds = table[KIND : count * ROW_FIELDS : ROW_FIELDS]
    if count >= many_min and kinds.count(RELEASED_TICKET) == count:
        yield ClosedMany(table[NUMBER : count * ROW_FIELDS : ROW_FIELDS])
        return
    for row, kind in enumerate(kinds):
        if kind == RELEASED_TICKET:
            yield Closed(table[row * ROW_FIELDS + NUMBER], HoldEnding.RELEASED)
        elif kind == OTHER:
            offset, headers = _record(section, header, table, row)
            event = _event_of_ours(header, offset, table[row * ROW_FIELDS + SIZE], headers)
            if event is not None:
                yield event


def _carried(
    section: bytes, header: BatchHeader, table: array[int], start: int, count: int
) -> Iterator[HoldEvent]:
    """The events of carried copies, in a table that was indexed; the first one is at `start`."""
    for row in range(count):
        offset, headers = _record(section, header, table, row)
        end = table[row * ROW_FIELDS + RECORD_END]
        event = _event_of_ours(header, offset, end - start, headers)
        if event is not None:
            yield event
        start = end


def _record(
    section: bytes, header: BatchHeader, table: array[int], row: int
) -> tuple[int, Headers]:
    """Offset and headers of one record."""
    at = row * ROW_FIELDS
    headers_at, end, count = (
        table[at + HEADERS_AT],
        table[at + RECORD_END],
        table[at + HEADER_COUNT],
    )
    headers = dict(read_headers(section, headers_at, end, count)) if count else {}
    return header.base_offset + table[at + OFFSET_DELTA], headers


def _event_of_client(
    header: BatchHeader, offset: int, size_bytes: int, headers: Headers
) -> HoldEvent | None:
    if COMMAND in headers:
        return _command(header, headers)
    if not is_held(headers):
        return None
    due_ms, axis = read_due(headers, stamp_of(header))
    hold = _hold(offset, due_ms, axis, offset, size_bytes, headers)
    return Opened(hold, header.producer_id if header.is_transactional else None)


def _command(header: BatchHeader, headers: Headers) -> HoldEvent | None:
    target = read_target(headers)
    if target is None or header.is_transactional:
        return None  # intake refuses both
    if headers[COMMAND] == CANCEL:
        return Closed(target, HoldEnding.CANCELLED)
    if headers[COMMAND] == MOVE and is_held(headers):
        return Moved(target, *read_due(headers, stamp_of(header)))
    return None


def _event_of_ours(
    header: BatchHeader, offset: int, size_bytes: int, headers: Headers
) -> HoldEvent | None:
    ticket = read_number(headers.get(TICKET))
    if ticket is None:
        return None
    if is_veiled(header) and is_held(headers):
        due_ms = read_number(headers.get(DUE))
        axis = read_axis(headers)
        due_ms = DUE_NEVER if due_ms is None else due_ms
        return Carried(_hold(ticket, due_ms, axis, offset, size_bytes, headers))
    next_ms = read_number(headers.get(NEXT))
    if next_ms is not None:
        return Moved(ticket, next_ms, Axis.WALL)
    return Closed(ticket, HoldEnding.RELEASED)


def _hold(
    ticket: int, due_ms: int, axis: Axis, offset: int, size_bytes: int, headers: Headers
) -> Hold:
    schedule = headers.get(SCHEDULE)
    return Hold(
        ticket,
        due_ms,
        axis,
        offset,
        size_bytes,
        headers.get(MESSAGE_ID) or None,
        None if schedule is None else schedule.decode("utf-8", "replace"),
    )
