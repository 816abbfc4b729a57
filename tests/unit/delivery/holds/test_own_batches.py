"""What a release and a carried copy look like, and what the book makes of them."""

from __future__ import annotations

from tests.unit.delivery.holds.hold_log import STAMP_MS, HoldLog, at, copy, cron, open_tickets
from tidemill.delivery.holds.copies.held_records import read_held
from tidemill.delivery.holds.copies.own_batches import HeldCopy, carried_batch, release_batch
from tidemill.delivery.holds.events import Carried, Closed, HoldEnding, Moved, events_of
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.wire import compression
from tidemill.wire import header_names as names
from tidemill.wire.batch import assign_offsets, read_header, verify
from tidemill.wire.marks import is_ours, is_veiled, veil
from tidemill.wire.records import Record, build_batch, iter_records

NOW_MS, SENT_MS = STAMP_MS + 5_000, STAMP_MS - 70_000
HOLD = Hold(ticket=3, due_ms=44, axis=Axis.WALL, offset=3, size_bytes=9)


def _record(*headers: tuple[str, bytes | None]) -> Record:
    return Record(b"value", b"key", headers=headers, timestamp=SENT_MS)


def test_a_released_record_keeps_key_value_and_the_other_headers_in_their_order():
    record = _record(("a", b"1"), (names.DELIVER_AT, b"44"), ("a", None), (names.MESSAGE_ID, b"m"))
    data = release_batch([HeldCopy(HOLD, record)], now_ms=NOW_MS)
    header = read_header(data)
    verify(memoryview(data), header)
    assert (is_ours(header), is_veiled(header)) == (True, False)
    (out,) = iter_records(data)
    assert (out.key, out.value, out.timestamp) == (b"key", b"value", NOW_MS)
    assert out.headers == [
        ("a", b"1"),
        ("a", None),
        (names.MESSAGE_ID, b"m"),
        (names.SENT_AT, b"%d" % SENT_MS),
        (names.TICKET, b"3"),
        (names.DUE, b"44"),
    ]
    assert events_of(data, header) == [Closed(3, HoldEnding.RELEASED)]


def test_a_forwarded_record_loses_the_answers_that_it_came_with():
    foreign = [(name, b"9") for name in (names.TICKET, names.DUE, names.NEXT, names.SENT_AT)]
    record = _record((names.DELAY_MS, b"1"), *foreign)
    data = release_batch([HeldCopy(HOLD, record)], now_ms=NOW_MS, codec=compression.LZ4)
    (out,) = iter_records(data)
    assert [name for name, _ in out.headers] == [names.SENT_AT, names.TICKET, names.DUE]
    assert dict(out.headers)[names.SENT_AT] == b"%d" % SENT_MS
    assert events_of(data, read_header(data)) == [Closed(3, HoldEnding.RELEASED)]


def test_a_tick_moves_its_schedule_to_the_next_one():
    hold = HOLD._replace(schedule="* * * * *", offset=7)
    record = _record((names.SCHEDULE, b"* * * * *"), (names.MESSAGE_ID, b"m"))
    data = release_batch([HeldCopy(hold, record, next_ms=99)], now_ms=NOW_MS)
    assert events_of(data, read_header(data)) == [Moved(3, 99, Axis.WALL)]


def test_a_carried_copy_says_all_that_the_book_knows_and_is_carried_again_alike():
    hold = HOLD._replace(axis=Axis.STEADY, due_ms=77, message_id=b"m")
    record = _record((names.DELAY_MS, b"1"), (names.MESSAGE_ID, b"m"), (names.TICKET, b"5"))
    for base_offset in (10, 20):
        data = carried_batch([HeldCopy(hold, record)], now_ms=NOW_MS, stamp_ms=STAMP_MS)
        assign_offsets(data, base_offset, 0)
        header = read_header(data)
        assert is_ours(header)
        assert is_veiled(header)
        event = events_of(data, header)[1]
        assert isinstance(event, Carried)
        hold = hold._replace(offset=base_offset, size_bytes=event.hold.size_bytes)
        assert event.hold == hold
        (record,) = read_held(data, header, {base_offset})
        assert dict(record.headers)[names.SENT_AT] == b"%d" % SENT_MS
        assert [name for name, _ in record.headers].count(names.TICKET) == 1


def test_a_carried_schedule_is_planned():
    log = HoldLog()
    log.client(cron(b"daily"))
    log.carried(copy(0, 5, cron(b"daily")))
    (hold,) = log.book().held()
    assert (hold.needs_plan, hold.due_ms, hold.schedule) == (False, 5, "0 9 * * *")
    assert open_tickets(log.book()) == [0]


def test_held_records_are_read_with_the_times_of_their_producer():
    records = [
        Record(b"a", headers=at(1), timestamp=SENT_MS + 3),
        Record(b"b", timestamp=SENT_MS + 9),
        Record(b"c", headers=at(2), timestamp=SENT_MS),
    ]
    data = build_batch(records, base_offset=6)
    header = read_header(data)
    veil(data, header, stamp_ms=STAMP_MS)
    found = read_held(data, header, {6, 8})
    assert [(one.offset, one.value, one.timestamp) for one in found] == [
        (6, b"a", SENT_MS + 3),
        (8, b"c", SENT_MS),
    ]
