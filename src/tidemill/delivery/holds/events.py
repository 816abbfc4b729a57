"""What a batch means for the holds of its partition: a function of its bytes alone.

    batch                  record                                  event
    veiled, a client's     `deliver-at`, `delay-ms`, `schedule`    Opened: its offset is its ticket
                           `command=cancel`, `target`              Closed
                           `command=move`, `target`, a due time    Moved
    ours, veiled           the same requests, `ticket due axis`    Carried: a newer copy
    ours                   `ticket`                                Closed: released
                           `ticket next`                           Moved: a tick of a schedule
    control                a marker                                TransactionEnded

A client's own `ticket`, `due`, `axis` and `next` are data. No clock is read here and no topic key:
a replica that reads the same bytes years later finds the same events.

Opens single records, of marked batches only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.delivery.holds.hold import DUE_NEVER, Axis, Hold
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
    "HoldEnding",
    "HoldEvent",
    "Moved",
    "Opened",
    "Stamped",
    "TransactionEnded",
    "concerns_holds",
    "events_in",
    "events_of",
]

Buffer = bytes | bytearray | memoryview

_CHUNK_RECORDS = 256
"""Records that exist as Python objects at the same time while a batch is read."""


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


class Carried(NamedTuple):
    """A copy of an open hold that takes the place of the copy before it."""

    hold: Hold


class Closed(NamedTuple):
    target: Target
    ending: HoldEnding


class Moved(NamedTuple):
    """A new due time for an open hold."""

    target: Target
    due_ms: int
    axis: Axis


class TransactionEnded(NamedTuple):
    producer_id: int
    is_commit: bool


HoldEvent = Stamped | Opened | Carried | Closed | Moved | TransactionEnded


def concerns_holds(header: BatchHeader) -> bool:
    """Whether a batch can have events: all others need not be read."""
    return is_marked(header) or (header.is_control and header.is_transactional)


def events_of(batch: Buffer, header: BatchHeader) -> list[HoldEvent]:
    """The events of the stored batch that `batch` starts with, in order."""
    view = memoryview(batch)
    if header.is_control:
        if not header.is_transactional:
            return []
        return [TransactionEnded(header.producer_id, read_marker(view, header).is_commit)]
    if not is_marked(header):
        return []
    return events_in(records_section(view, header), header)


def events_in(section: Buffer, header: BatchHeader) -> list[HoldEvent]:
    """The events of a marked batch, whose records were decompressed already."""
    events: list[HoldEvent] = []
    if is_veiled(header):
        events.append(Stamped(stamp_of(header)))
    for offset, size_bytes, headers in _records_with_headers(bytes(section), header):
        if is_ours(header):
            event = _event_of_ours(header, offset, size_bytes, headers)
        else:
            event = _event_of_client(header, offset, size_bytes, headers)
        if event is not None:
            events.append(event)
    return events


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


def _records_with_headers(
    section: bytes, header: BatchHeader
) -> Iterator[tuple[int, int, Headers]]:
    """Offset, size and headers of each record that has any."""
    table = array("q", bytes(8 * ROW_FIELDS * min(header.record_count, _CHUNK_RECORDS)))
    position = 0
    for first in range(0, header.record_count, _CHUNK_RECORDS):
        count = min(_CHUNK_RECORDS, header.record_count - first)
        start = position
        try:
            position = index(section, position, len(section), first, count, table)
        except ValueError as err:
            raise KafkaError(ErrorCode.INVALID_RECORD, str(err)) from None
        for row in range(0, count * ROW_FIELDS, ROW_FIELDS):
            end, header_count = table[row + RECORD_END], table[row + HEADER_COUNT]
            if header_count:
                headers = dict(read_headers(section, table[row + HEADERS_AT], end, header_count))
                yield header.base_offset + table[row + OFFSET_DELTA], end - start, headers
            start = end
