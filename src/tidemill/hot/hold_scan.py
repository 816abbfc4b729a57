"""Finds what the records of a batch say about holds, without an object per record.

HOT PATH of topics with delay: once per record of a batch with headers of ours, when it is taken in
and when a replica folds it.

A scan indexes the records (`record_walk.index`), then writes over the columns of the table that
nobody needs: what the record asks for, the number that it gives, and where its message id lies.
Decided here is only what almost every held record has: one delay or date in digits, and an id. All
else is `OTHER`, and somebody reads its headers one by one.
"""

from __future__ import annotations

from array import array

from tidemill.hot.record_walk import header_at, index

__all__ = [
    "DATE",
    "DELAY",
    "ID_AT",
    "ID_BYTES",
    "KIND",
    "NUMBER",
    "OTHER",
    "PLAIN",
    "SIZE",
    "TICKET",
    "count_others",
    "highest_number",
    "is_rising",
    "scan_requests",
    "scan_tickets",
    "take_stretch",
]

Buffer = bytes | bytearray | memoryview

# Columns of the table: others than these are as `record_walk.index` leaves them.
SIZE = 1
KIND = 2
NUMBER = 3
ID_AT = 4
ID_BYTES = 5
"""-1: it has none."""

# Kinds of records.
PLAIN = 0
"""It asks for nothing."""
DELAY = 1
"""`delay-ms`; the number is the delay."""
DATE = 2
"""`deliver-at`; the number is the date."""
TICKET = 3
"""Of a batch of ours: it ends the hold with this ticket."""
OTHER = 4
"""Its headers say."""

_CHUNK_RECORDS = 512
_DIGITS_MAX = 18
"""Any number of so many digits fits 63 bits."""
_ID_BYTES_MAX = 255
_DUE_NEVER = 0x7FFF_FFFF_FFFF_FFFF

# Names behind their first nine bytes, and what they are.
_PREFIX = b"tidemill."
_DELAY_NAME = b"delay-ms"
_DATE_NAME = b"deliver-at"
_ID_NAME = b"message-id"
_TICKET_NAME = b"ticket"
_NEXT_NAME = b"next"
_DUE_NAME = b"due"
_SENT_NAME = b"sent-at"
_TAGS_NAME = b"tags"
_PRIORITY_NAME = b"priority"
_ROUTING_NAME = b"routing-key"


def scan_requests(
    buf: Buffer, start: int, end: int, first: int, count: int, table: array[int] | memoryview
) -> tuple[int, int]:
    """What `count` records of a client's batch ask for; `table` has nine numbers for each.

    `first` is the number of the first one in its batch. Returns where the records end, and how many
    are `OTHER`. Raises ValueError.
    """
    position = index(buf, start, end, first, count, table)
    others = 0
    record_at = start
    for row in range(0, count * 9, 9):
        record_end = table[row + 8]
        table[row + 1] = record_end - record_at
        record_at = record_end
        table[row + 5] = -1
        kind = _judge_request(buf, table, row) if table[row + 7] else 0
        table[row + 2] = kind
        if kind == 4:
            others += 1
    return position, others


def scan_tickets(
    buf: Buffer, start: int, end: int, first: int, count: int, table: array[int] | memoryview
) -> int:
    """What `count` records of a release say; otherwise like `scan_requests`."""
    position = index(buf, start, end, first, count, table)
    record_at = start
    for row in range(0, count * 9, 9):
        record_end = table[row + 8]
        table[row + 1] = record_end - record_at
        record_at = record_end
        table[row + 5] = -1
        table[row + 2] = _judge_ticket(buf, table, row) if table[row + 7] else 0
    return position


def count_others(buf: Buffer, start: int, end: int, count: int, limit: int) -> int:
    """How many records are `OTHER`; counting ends above `limit`. Raises ValueError."""
    table = array("q", bytes(8 * 9 * min(count, _CHUNK_RECORDS)))
    position = start
    done = 0
    found = 0
    while done < count and found <= limit:
        chunk = min(count - done, _CHUNK_RECORDS)
        position, others = scan_requests(buf, position, end, done, chunk, table)
        found += others
        done += chunk
    return found


def take_stretch(
    table: array[int] | memoryview,
    row: int,
    count: int,
    base_offset: int,
    stamp_ms: int,
    columns: array[int] | memoryview,
) -> tuple[int, int, int, int, bool]:
    """Put the holds of the first rows that are of one kind, or `PLAIN`, into `columns`.

    These are three columns of a third of its length each: tickets, due times, sizes. Rows are
    numbered from `row` up to `count`. Returns the row to go on with, how many holds were put, their
    bytes, their kind (`PLAIN`: there was none), and whether no due time is below the one before.
    """
    room = len(columns) // 3
    kind = 0
    taken = 0
    size_bytes = 0
    previous = 0
    rising = True
    while row < count and taken < room:
        at = row * 9
        found = table[at + 2]
        if found != 0:
            if found == 4 or (kind != 0 and found != kind):
                break
            kind = found
            due = table[at + 3]
            if found == 1 and stamp_ms > 0 and due > _DUE_NEVER - stamp_ms:
                due = _DUE_NEVER
            elif found == 1:
                due += stamp_ms
            if taken > 0 and due < previous:
                rising = False
            previous = due
            columns[taken] = base_offset + table[at]
            columns[room + taken] = due
            columns[2 * room + taken] = table[at + 1]
            size_bytes += table[at + 1]
            taken += 1
        row += 1
    return row, taken, size_bytes, kind, rising


def highest_number(table: array[int] | memoryview, count: int, kind: int) -> int:
    """The highest number of the first `count` rows that are of this kind; -1 if none is."""
    highest = -1
    for at in range(0, count * 9, 9):
        if table[at + 2] == kind and table[at + 3] > highest:
            highest = table[at + 3]
    return highest


def is_rising(column: array[int] | memoryview) -> bool:
    """Whether no number is below the one before."""
    # compiled, a generator is slower
    for place in range(1, len(column)):  # noqa: SIM110
        if column[place] < column[place - 1]:
            return False
    return True


def _judge_request(buf: Buffer, table: array[int] | memoryview, row: int) -> int:
    """The kind of one record; its number and its id are set."""
    position = table[row + 6]
    end = table[row + 8]
    kind = 0
    for _ in range(table[row + 7]):
        name_at, name_bytes, value_at, value_bytes = header_at(buf, position, end)
        position = value_at + max(0, value_bytes)
        if name_bytes <= 9 or not _is_text(buf, name_at, _PREFIX, 9):
            continue
        name_at += 9
        name_bytes -= 9
        named = 4
        if name_bytes == 8 and _is_text(buf, name_at, _DELAY_NAME, 8):
            named = 1
        elif name_bytes == 10 and _is_text(buf, name_at, _DATE_NAME, 10):
            named = 2
        elif name_bytes == 10 and _is_text(buf, name_at, _ID_NAME, 10):
            if table[row + 5] == -1 and 0 < value_bytes <= _ID_BYTES_MAX:
                table[row + 4] = value_at
                table[row + 5] = value_bytes
                continue
        elif _is_data(buf, name_at, name_bytes):
            continue
        number = _digits(buf, value_at, value_bytes)
        if named == 4 or number < 0 or kind != 0:
            return 4
        kind = named
        table[row + 3] = number
    return kind


def _judge_ticket(buf: Buffer, table: array[int] | memoryview, row: int) -> int:
    """The kind of one record of ours; its ticket is set."""
    position = table[row + 6]
    end = table[row + 8]
    kind = 0
    for _ in range(table[row + 7]):
        name_at, name_bytes, value_at, value_bytes = header_at(buf, position, end)
        position = value_at + max(0, value_bytes)
        if not 13 <= name_bytes <= 15 or not _is_text(buf, name_at, _PREFIX, 9):
            continue
        if name_bytes == 13 and _is_text(buf, name_at + 9, _NEXT_NAME, 4):
            return 4
        if name_bytes == 15 and _is_text(buf, name_at + 9, _TICKET_NAME, 6):
            number = _digits(buf, value_at, value_bytes)
            if number < 0 or kind != 0:
                return 4
            kind = 3
            table[row + 3] = number
    return kind


def _is_data(buf: Buffer, at: int, size: int) -> bool:
    """Whether a name asks for nothing: forwarded from a released record, or for views."""
    if size == 3:
        return _is_text(buf, at, _DUE_NAME, 3)
    if size == 4:
        return _is_text(buf, at, _TAGS_NAME, 4)
    if size == 6:
        return _is_text(buf, at, _TICKET_NAME, 6)
    if size == 7:
        return _is_text(buf, at, _SENT_NAME, 7)
    if size == 8:
        return _is_text(buf, at, _PRIORITY_NAME, 8)
    if size == 11:
        return _is_text(buf, at, _ROUTING_NAME, 11)
    return False


def _digits(buf: Buffer, at: int, size: int) -> int:
    """The number that these bytes write; -1 if they write none, or a very long one."""
    if not 0 < size <= _DIGITS_MAX:
        return -1
    number = 0
    for place in range(at, at + size):
        digit = buf[place]
        if not 0x30 <= digit <= 0x39:
            return -1
        number = number * 10 + (digit - 0x30)
    return number


def _is_text(buf: Buffer, at: int, text: bytes, size: int) -> bool:
    """Whether `text`, of this size, is at `at`; the bytes there are in bounds."""
    # compiled, a generator is slower
    for place in range(size):  # noqa: SIM110
        if buf[at + place] != text[place]:
            return False
    return True
