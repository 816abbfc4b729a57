"""A small log of batches about holds, in real bytes, and books folded from it."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.delivery.holds.events import HoldEvent, events_of
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.wire import compression
from tidemill.wire import header_names as names
from tidemill.wire.batch import BatchHeader, assign_offsets, read_header
from tidemill.wire.marks import mark_ours, veil
from tidemill.wire.records import Header, Record, build_batch
from tidemill.wire.transaction_marker import TransactionMarker, build_marker

STAMP_MS = 1_700_000_000_000


class HoldLog:
    """Batches with rising offsets; each call appends one and returns its base offset."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.read: list[tuple[BatchHeader, list[HoldEvent]]] = []
        """Header and events of each batch."""
        self.end = 0

    def client(
        self,
        *records: Sequence[Header],
        stamp_ms: int = STAMP_MS,
        producer_id: int | None = None,
        codec: int = compression.NONE,
    ) -> int:
        """A client's veiled batch; of each record the headers are given."""
        data = self._batch(records, codec=codec, producer_id=producer_id)
        veil(data, read_header(data), stamp_ms=stamp_ms)
        return self._append(data)

    def plain(self, *records: Sequence[Header]) -> int:
        """A client's batch that intake left as it is."""
        return self._append(self._batch(records))

    def ours(self, *records: Sequence[Header]) -> int:
        """A release."""
        data = self._batch(records)
        mark_ours(data)
        return self._append(data)

    def carried(self, *records: Sequence[Header], stamp_ms: int = STAMP_MS) -> int:
        data = self._batch(records)
        veil(data, read_header(data), stamp_ms=stamp_ms)
        mark_ours(data)
        return self._append(data)

    def marker(self, producer_id: int, *, is_commit: bool) -> int:
        made = TransactionMarker(is_commit, 0, 0, 0)
        return self._append(
            build_marker(made, producer_id=producer_id, producer_epoch=0, timestamp=STAMP_MS)
        )

    def cut(self, offset: int) -> None:
        """Batches at `offset` and above are gone."""
        count = sum(header.base_offset < offset for header, _ in self.read)
        del self.batches[count:], self.read[count:]
        self.end = offset

    def shorter(self, offset: int) -> HoldLog:
        """A copy, cut at `offset`."""
        made = HoldLog()
        made.batches, made.read, made.end = list(self.batches), list(self.read), self.end
        made.cut(offset)
        return made

    def book(self, start: int = 0) -> HoldBook:
        """Folded from the first batch that reaches `start`."""
        made = HoldBook()
        self.fold_into(made, start)
        return made

    def fold_into(self, book: HoldBook, start: int = 0) -> None:
        for header, events in self.read:
            if header.last_offset >= start:
                book.fold(events, offset=header.next_offset)

    def _batch(
        self,
        records: Sequence[Sequence[Header]],
        *,
        codec: int = compression.NONE,
        producer_id: int | None = None,
    ) -> bytearray:
        return build_batch(
            [Record(b"value", headers=headers, timestamp=STAMP_MS) for headers in records],
            codec=codec,
            producer_id=-1 if producer_id is None else producer_id,
            producer_epoch=-1 if producer_id is None else 0,
            base_sequence=-1 if producer_id is None else 0,
            transactional=producer_id is not None,
        )

    def _append(self, data: bytearray) -> int:
        offset = self.end
        assign_offsets(data, offset, 0)
        header = read_header(data)
        self.batches.append(bytes(data))
        self.read.append((header, events_of(data, header)))
        self.end = header.next_offset
        return offset


def number(name: str, value: int) -> Header:
    return name, str(value).encode()


def at(due_ms: int, message_id: bytes | None = None) -> list[Header]:
    """A record to deliver at a date."""
    ids: list[Header] = [] if message_id is None else [(names.MESSAGE_ID, message_id)]
    return [number(names.DELIVER_AT, due_ms), *ids]


def after(delay_ms: int) -> list[Header]:
    """A record to deliver after a delay."""
    return [number(names.DELAY_MS, delay_ms)]


def cron(message_id: bytes, line: bytes = b"0 9 * * *") -> list[Header]:
    return [(names.SCHEDULE, line), (names.MESSAGE_ID, message_id)]


def cancel(target: int | bytes) -> list[Header]:
    value = target if isinstance(target, bytes) else str(target).encode()
    return [(names.COMMAND, b"cancel"), (names.TARGET, value)]


def move(target: int | bytes, request: list[Header]) -> list[Header]:
    return [(names.COMMAND, b"move"), cancel(target)[1], *request]


def released(ticket: int, *, next_ms: int | None = None) -> list[Header]:
    ticks = [] if next_ms is None else [number(names.NEXT, next_ms)]
    return [number(names.TICKET, ticket), *ticks]


def copy(ticket: int, due_ms: int, request: list[Header], axis: bytes = b"wall") -> list[Header]:
    """A carried copy of the record with these headers."""
    answers = [number(names.TICKET, ticket), number(names.DUE, due_ms), (names.AXIS, axis)]
    return [*request, *answers]


def open_tickets(book: HoldBook) -> list[int]:
    return [hold.ticket for hold in book.held()]
