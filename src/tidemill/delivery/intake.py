"""What the records of a produced batch ask for by headers of our names. Pure.

A batch is taken in whole or refused whole: INVALID_RECORD, with the records at fault, each with the
header and the value. A request that cannot be met is refused and never ignored, since an ignored
delay is an early delivery; so are names that are reserved for later. Other headers of our names are
data: who forwards a record that was released forwards its `tidemill.ticket` too.

`read_requests` reads what the bytes say. Whether the topic and its holds allow it is decided where
the batch is appended (`replication.holding`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    BATCH_SCHEDULES_MAX,
    HELD_BATCH_BYTES_MAX,
    HELD_BATCH_RECORDS_MAX,
    MESSAGE_ID_BYTES_MAX,
    RECORD_ERRORS_MAX,
)
from tidemill.delivery.holds.hold_headers import (
    CANCEL,
    COMMAND,
    DELAY_MS,
    DELIVER_AT,
    MESSAGE_ID,
    MOVE,
    SCHEDULE,
    TARGET,
    Headers,
    Target,
    is_held,
    read_number,
    read_target,
)
from tidemill.delivery.holds.schedule import ScheduleError, next_tick_ms
from tidemill.hot.hold_scan import (
    DATE,
    DELAY,
    KIND,
    NUMBER,
    OTHER,
    highest_number,
    scan_requests,
)
from tidemill.hot.record_walk import (
    HEADER_COUNT,
    HEADERS_AT,
    RECORD_END,
    ROW_FIELDS,
    read_headers,
)
from tidemill.wire.batch import BatchHeader
from tidemill.wire.produced_batch import InvalidRecords, Records
from tidemill.wire.records import check_header_count, count_headers

__all__ = ["Command", "HeldRecord", "Requests", "read_requests", "refused_records"]

_CHUNK_RECORDS = 1_024
"""Records that are indexed at a time."""
_TEXT_BYTES_SHOWN_MAX = 80
_NOT_OFFERED: Final = (
    b"tidemill.expires-at",
    b"tidemill.half",
    b"tidemill.only-group",
    b"tidemill.track",
    b"tidemill.ttl-ms",
)
"""Requests that nobody meets yet: who ignored them would deliver too early or too late."""


class HeldRecord(NamedTuple):
    """A record that is to be delivered later, or that moves one that is."""

    place: int
    """In the batch."""
    deliver_at_ms: int | None
    delay_ms: int | None
    schedule: str | None = None

    @property
    def request(self) -> str:
        """The header and its value, for a refusal."""
        if self.schedule is not None:
            return f"tidemill.schedule={self.schedule!a}"
        if self.deliver_at_ms is not None:
            return f"tidemill.deliver-at={self.deliver_at_ms}"
        return f"tidemill.delay-ms={self.delay_ms}"


class Command(NamedTuple):
    """A record that cancels or moves a hold."""

    place: int
    target: Target
    move: HeldRecord | None
    """The new due time; None cancels."""


@final
class Requests:
    """What a batch asks for; made of its bytes alone."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.section_bytes = 0
        self.held_count = 0
        self.delay_max_ms = -1
        """The longest `delay-ms`; -1: there is none."""
        self.deliver_at_max_ms = -1
        """The latest `deliver-at`; -1: there is none."""
        self.schedules: list[HeldRecord] = []
        self._singles: dict[int, HeldRecord] = {}
        """Held records that were read one by one, by their places."""
        self._kinds = array("q")
        self._numbers = array("q")
        """What the scan said about each record of the batch."""

    def held(self) -> Iterator[HeldRecord]:
        """All held records, by place: for refusals, since there may be thousands."""
        for place, (kind, number) in enumerate(zip(self._kinds, self._numbers, strict=True)):
            if kind == DELAY:
                yield HeldRecord(place, None, number)
            elif kind == DATE:
                yield HeldRecord(place, number, None)
            elif place in self._singles:
                yield self._singles[place]

    def add_scanned(self, table: array[int], count: int) -> None:
        """The next `count` records, in a table that was scanned for requests."""
        kinds = table[KIND : count * ROW_FIELDS : ROW_FIELDS]
        self._kinds += kinds
        self._numbers += table[NUMBER : count * ROW_FIELDS : ROW_FIELDS]
        self.held_count += kinds.count(DELAY) + kinds.count(DATE)
        self.delay_max_ms = max(self.delay_max_ms, highest_number(table, count, DELAY))
        self.deliver_at_max_ms = max(self.deliver_at_max_ms, highest_number(table, count, DATE))

    def add_held(self, held: HeldRecord) -> None:
        """A held record that was read by itself."""
        self._singles[held.place] = held
        self.held_count += 1
        if held.schedule is not None:
            self.schedules.append(held)
        elif held.deliver_at_ms is not None:
            self.deliver_at_max_ms = max(self.deliver_at_max_ms, held.deliver_at_ms)
        elif held.delay_ms is not None:
            self.delay_max_ms = max(self.delay_max_ms, held.delay_ms)


def refused_records(errors: Sequence[tuple[int, str]]) -> InvalidRecords:
    """The refusal of a batch for these of its records: index, and why."""
    return InvalidRecords(ErrorCode.INVALID_RECORD, errors[0][1], list(errors[:RECORD_ERRORS_MAX]))


def read_requests(section: Records, header: BatchHeader, now_ms: int) -> Requests | None:
    """What the records ask for; None if they ask for nothing. KafkaError INVALID_RECORD.

    A schedule must tick after `now_ms`.
    """
    requests = Requests()
    errors: list[tuple[int, str]] = []
    data, position = bytes(section), 0
    table = array("q", bytes(8 * ROW_FIELDS * min(header.record_count, _CHUNK_RECORDS)))
    header_count = 0
    for first in range(0, header.record_count, _CHUNK_RECORDS):
        count = min(_CHUNK_RECORDS, header.record_count - first)
        position, others = scan_requests(data, position, len(data), first, count, table)
        requests.add_scanned(table, count)
        header_count += count_headers(table, count)
        if others or requests.held_count:
            check_header_count(header_count)
        if others:
            _read_others(requests, data, table, first, count, now_ms, errors)
    if errors:
        raise refused_records(errors)
    if not requests.held_count and not requests.commands:
        return None
    if len(data) > HELD_BATCH_BYTES_MAX or header.record_count > HELD_BATCH_RECORDS_MAX:
        detail = f"a batch with held records has at most {HELD_BATCH_RECORDS_MAX} records"
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"{detail} and {HELD_BATCH_BYTES_MAX} uncompressed bytes"
        )
    requests.section_bytes = len(data)
    return requests


def _read_others(
    requests: Requests,
    data: bytes,
    table: array[int],
    first: int,
    count: int,
    now_ms: int,
    errors: list[tuple[int, str]],
) -> None:
    """Add what those records ask for that the scan has left; the first one is `first`."""
    for row in range(count):
        at = row * ROW_FIELDS
        if table[at + KIND] != OTHER:
            continue
        headers = read_headers(
            data, table[at + HEADERS_AT], table[at + RECORD_END], table[at + HEADER_COUNT]
        )
        try:
            _read_record(first + row, dict(headers), requests, now_ms)
        except ValueError as error:
            errors.append((first + row, str(error)))
        if len(requests.schedules) > BATCH_SCHEDULES_MAX:
            detail = f"a batch has at most {BATCH_SCHEDULES_MAX} schedules"
            raise KafkaError(ErrorCode.INVALID_RECORD, detail)


def _read_record(index: int, headers: Headers, requests: Requests, now_ms: int) -> None:
    """Add what one record asks for; ValueError if that makes no sense."""
    for name in _NOT_OFFERED:
        if name in headers:
            raise ValueError(f"{name.decode()}={_shown(headers[name])}: not offered")
    if COMMAND in headers:
        requests.commands.append(_read_command(index, headers))
        return
    if not is_held(headers):
        return
    if SCHEDULE in headers:
        held = _read_schedule(index, headers, now_ms)
    else:
        held = _read_time(index, headers)
    _check_id(headers)
    requests.add_held(held)


def _read_time(index: int, headers: Headers) -> HeldRecord:
    if DELIVER_AT in headers and DELAY_MS in headers:
        raise ValueError("tidemill.deliver-at and tidemill.delay-ms exclude each other")
    if DELIVER_AT in headers:
        return HeldRecord(index, _number(headers, DELIVER_AT), None)
    return HeldRecord(index, None, _number(headers, DELAY_MS))


def _read_schedule(index: int, headers: Headers, now_ms: int) -> HeldRecord:
    if DELIVER_AT in headers or DELAY_MS in headers:
        raise ValueError("a record with tidemill.schedule has no other time")
    if not headers.get(MESSAGE_ID):
        raise ValueError("tidemill.schedule needs a tidemill.message-id")
    value = headers[SCHEDULE]
    try:
        line = (value or b"").decode()
        next_tick_ms(line, after_ms=now_ms)
    except (UnicodeDecodeError, ScheduleError) as error:
        raise ValueError(f"tidemill.schedule={_shown(value)}: {error}") from None
    return HeldRecord(index, None, None, line)


def _read_command(index: int, headers: Headers) -> Command:
    command, target = headers[COMMAND], read_target(headers)
    if command not in (CANCEL, MOVE):
        raise ValueError(f"tidemill.command={_shown(command)}: expected cancel or move")
    if target is None:
        value = headers.get(TARGET)
        raise ValueError(f"tidemill.target={_shown(value)}: expected a ticket or a message id")
    if SCHEDULE in headers:
        raise ValueError("a command has no tidemill.schedule")
    if command == CANCEL:
        if is_held(headers):
            raise ValueError("tidemill.command=cancel has no time")
        return Command(index, target, None)
    if not is_held(headers):
        raise ValueError("tidemill.command=move needs tidemill.deliver-at or tidemill.delay-ms")
    return Command(index, target, _read_time(index, headers))


def _number(headers: Headers, name: bytes) -> int:
    number = read_number(headers[name])
    if number is None:
        shown = _shown(headers[name])
        raise ValueError(f"{name.decode()}={shown}: expected a number of milliseconds")
    return number


def _check_id(headers: Headers) -> None:
    if MESSAGE_ID not in headers:
        return
    value = headers[MESSAGE_ID]
    if not value or len(value) > MESSAGE_ID_BYTES_MAX:
        detail = f"expected 1 to {MESSAGE_ID_BYTES_MAX} bytes"
        raise ValueError(f"tidemill.message-id={_shown(value)}: {detail}")


def _shown(value: bytes | None) -> str:
    if value is None:
        return "null"
    return ascii(value[:_TEXT_BYTES_SHOWN_MAX].decode("utf-8", "replace"))
