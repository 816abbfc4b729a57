"""A view of what is held: every open hold once, where its newest copy is, and nothing else."""

from __future__ import annotations

import pytest

from tests.unit.delivery.test_view_walk import run, shape
from tidemill.delivery.holds.copies.own_batches import HeldCopy, carried_batch, release_batch
from tidemill.delivery.holds.events import events_of
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.matchless import MatchlessRanges
from tidemill.delivery.view_walk import ViewWalk
from tidemill.wire import compression
from tidemill.wire.batch import assign_offsets, iter_headers, read_header
from tidemill.wire.marks import MARKS, veil
from tidemill.wire.records import Record, build_batch, iter_records

NOW_MS = 1_700_000_000_000
STAMP_MS = NOW_MS + 5
EPOCH = 5


class Log:
    """The batches of a partition and its book, as a leader has them."""

    def __init__(self) -> None:
        self.book = HoldBook()
        self.batches: list[bytes] = []
        self.end_offset = 0

    def append(self, batch: bytearray) -> int:
        base = self.end_offset
        assign_offsets(batch, base, EPOCH)
        header = read_header(batch)
        self.book.fold(events_of(batch, header), offset=header.next_offset)
        self.batches.append(bytes(batch))
        self.end_offset = header.next_offset
        return base

    def hold(self, *delays_ms: int | None, codec: int = compression.NONE, **options) -> int:
        """One batch; a record without a delay is plain."""
        records = [
            Record(
                b"v",
                b"%d" % place,
                headers=[] if delay is None else [("tidemill.delay-ms", b"%d" % delay)],
                timestamp=NOW_MS + place,
            )
            for place, delay in enumerate(delays_ms)
        ]
        batch = build_batch(records, codec=codec, **options)
        veil(batch, read_header(batch), stamp_ms=STAMP_MS)
        return self.append(batch)

    def plain(self, count: int) -> int:
        return self.append(build_batch([Record(b"p", timestamp=NOW_MS)] * count))

    def copy(self, ticket: int) -> HeldCopy:
        hold = self.book.find(ticket)
        assert hold is not None
        [record] = [
            record
            for batch in self.batches
            for record in iter_records(batch)
            if record.offset == hold.offset
        ]
        return HeldCopy(hold, record)

    def release(self, ticket: int) -> None:
        self.append(release_batch([self.copy(ticket)], now_ms=NOW_MS))

    def carry(self, ticket: int) -> None:
        copies = [self.copy(ticket)]
        self.append(carried_batch(copies, now_ms=NOW_MS + 99, stamp_ms=STAMP_MS))

    def walk(self, fetch_offset: int = 0, bytes_max: int = 1 << 20) -> ViewWalk:
        return ViewWalk(
            None,
            partition=0,
            fetch_offset=fetch_offset,
            start_offset=fetch_offset,
            leader_epoch=EPOCH,
            bytes_max=bytes_max,
            matchless=MatchlessRanges(),
            holds=self.book,
        )

    def answer(self, fetch_offset: int = 0, bytes_max: int = 1 << 20) -> bytes:
        return run(self.walk(fetch_offset, bytes_max), b"".join(self.batches))[0]


def records_of(answer) -> list[Record]:
    view = memoryview(answer)
    return [
        record
        for position, header in iter_headers(view)
        if not header.is_control
        for record in iter_records(view[position : position + header.size_bytes])
    ]


def test_only_open_holds_are_shown_at_their_offsets():
    log = Log()
    log.plain(2)
    log.hold(60_000, None, 1000)
    log.plain(1)
    assert shape(log.answer()) == [[2, 4], ("skip", 5)]


def test_a_hold_is_shown_as_sent_with_its_ticket_and_due_time():
    log = Log()
    log.hold(None, 60_000)
    [record] = records_of(log.answer())
    assert (record.key, record.value, record.timestamp) == (b"1", b"v", NOW_MS + 1)
    assert record.headers == [
        ("tidemill.delay-ms", b"60000"),
        ("tidemill.ticket", b"1"),
        ("tidemill.due", b"%d" % (STAMP_MS + 60_000)),
    ]


def test_no_mark_reaches_a_reader():
    log = Log()
    log.hold(1000)
    log.carry(0)
    for _, header in iter_headers(log.answer()):
        assert not header.attributes & MARKS


def test_what_was_released_or_cancelled_is_shown_no_longer():
    log = Log()
    log.hold(1000, 2000, 3000)
    log.release(1)
    cancel = [("tidemill.command", b"cancel"), ("tidemill.target", b"2")]
    batch = build_batch([Record(None, headers=cancel, timestamp=NOW_MS)])
    veil(batch, read_header(batch), stamp_ms=STAMP_MS)
    log.append(batch)
    assert shape(log.answer()) == [[0], ("skip", 4)]


def test_a_carried_hold_is_shown_once_where_it_is_now():
    log = Log()
    log.hold(1000, 2000)
    log.carry(0)
    assert shape(log.answer()) == [[1], [2]]
    record = records_of(log.answer())[1]
    assert record.timestamp == NOW_MS
    assert dict(record.headers)["tidemill.ticket"] == b"0"
    assert "tidemill.sent-at" not in dict(record.headers)


def test_a_moved_hold_shows_its_new_due_time():
    log = Log()
    log.hold(1000)
    headers = [
        ("tidemill.command", b"move"),
        ("tidemill.target", b"0"),
        ("tidemill.deliver-at", b"77"),
    ]
    batch = build_batch([Record(None, headers=headers, timestamp=NOW_MS)])
    veil(batch, read_header(batch), stamp_ms=STAMP_MS)
    log.append(batch)
    [record] = records_of(log.answer())
    assert dict(record.headers)["tidemill.due"] == b"77"


def test_a_clients_own_ticket_is_not_believed():
    log = Log()
    log.hold(1000)
    forged = Record(
        b"v", headers=[("tidemill.delay-ms", b"1"), ("tidemill.ticket", b"0")], timestamp=NOW_MS
    )
    batch = build_batch([forged])
    veil(batch, read_header(batch), stamp_ms=STAMP_MS)
    log.append(batch)
    tickets = [dict(record.headers)["tidemill.ticket"] for record in records_of(log.answer())]
    assert tickets == [b"0", b"1"]


def test_a_fetch_continues_inside_a_batch_and_stops_when_full():
    log = Log()
    log.hold(1000, 2000)
    log.hold(3000)
    assert shape(log.answer(fetch_offset=1)) == [[1], [2]]
    assert shape(log.answer(bytes_max=1)) == [[0, 1]]


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4, compression.ZSTD])
def test_compressed_batches_are_opened(codec):
    log = Log()
    log.hold(None, 1000, codec=codec)
    assert shape(log.answer()) == [[1]]
    assert records_of(log.answer())[0].timestamp == NOW_MS + 1


def test_many_holds_of_one_batch_are_built_in_a_thread():
    log = Log()
    log.hold(*[1000] * 500)
    answer, jobs = run(log.walk(), *log.batches)
    assert jobs == 1
    assert len(records_of(answer)) == 500


def test_nothing_held_ends_in_a_skip_batch_behind_it_all():
    log = Log()
    log.plain(3)
    log.hold(1000)
    log.release(3)
    assert shape(log.answer()) == [("skip", 4)]
    assert log.walk().is_empty
