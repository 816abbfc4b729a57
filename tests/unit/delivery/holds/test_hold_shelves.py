"""A book that keeps its holds in runs answers like one that keeps all in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.delivery.holds.any_log import any_log
from tests.unit.delivery.holds.book_answers import answers
from tests.unit.delivery.holds.hold_log import HoldLog, at, cancel, cron, move, released
from tidemill.delivery.holds.events import Closed, HoldEnding
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_run import HoldRun, encode_run
from tidemill.delivery.holds.hold_shelves import Spill

EVER = 1 << 62


@pytest.mark.slow
@given(any_log(), st.integers(1, 3), st.data())
def test_it_does_not_matter_when_holds_are_spilled_or_whether_they_are(log, table_max, data):
    plain, spilling = HoldBook(), HoldBook(table_max=table_max)
    waiting: list[Spill] = []
    for header, events in log.read:
        for book in (plain, spilling):
            book.fold(events, offset=header.next_offset)
        spill = spilling.try_freeze()
        if spill is not None:
            waiting.append(spill)
        while waiting and data.draw(st.booleans()):
            spill = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            spilling.adopt(spill.serial, memoryview(spill.encode()))
        assert answers(spilling, log) == answers(plain, log)


def _spilled(book: HoldBook) -> int:
    """Spill what is in memory; the serial of the run."""
    spill = book.try_freeze()
    assert spill is not None
    assert book.adopt(spill.serial, memoryview(spill.encode()))
    return spill.serial


def _fold(book: HoldBook, log: HoldLog) -> None:
    header, events = log.read[-1]
    book.fold(events, offset=header.next_offset)


def test_a_table_is_spilled_when_it_is_full_and_not_before():
    log, book = HoldLog(), HoldBook(table_max=3)
    log.client(at(10), at(20))
    _fold(book, log)
    assert book.try_freeze() is None
    log.client(at(30))
    _fold(book, log)
    serial = _spilled(book)
    assert book.runs() == [serial]
    assert book.try_freeze() is None


def test_what_is_taken_while_a_table_is_written_stays_taken():
    log, book = HoldLog(), HoldBook(table_max=2)
    log.client(at(10), at(20))
    _fold(book, log)
    spill = book.try_freeze()
    assert spill is not None
    log.ours(released(0))
    _fold(book, log)
    assert book.adopt(spill.serial, memoryview(spill.encode()))
    assert [hold.ticket for hold in book.held()] == [1]


def test_a_run_of_which_all_is_taken_is_not_needed_any_more():
    log, book = HoldLog(), HoldBook(table_max=2)
    log.client(at(10), at(20))
    _fold(book, log)
    _spilled(book)
    log.ours(released(0), released(1))
    _fold(book, log)
    assert (book.runs(), book.pending, book.floor()) == ([], 0, 0)


def test_a_run_that_came_too_late_is_not_adopted():
    log, book = HoldLog(), HoldBook(table_max=1)
    log.client(at(10))
    _fold(book, log)
    spill = book.try_freeze()
    assert spill is not None
    book.cut(0)
    assert not book.adopt(spill.serial, memoryview(spill.encode()))
    log.fold_into(book)
    assert book.pending == 1
    assert not book.adopt(spill.serial, memoryview(spill.encode()))


def test_a_run_that_could_not_be_written_is_offered_again():
    log, book = HoldLog(), HoldBook(table_max=2)
    log.client(at(10), at(20))
    _fold(book, log)
    spill = book.try_freeze()
    assert spill is not None
    book.give_back(spill)
    log.ours(released(0))
    _fold(book, log)
    assert book.try_freeze() == spill
    assert book.adopt(spill.serial, memoryview(spill.encode()))
    assert [hold.ticket for hold in book.held()] == [1]
    assert book.try_freeze() is None


def test_a_run_with_little_left_gives_it_back_to_the_table():
    log, book = HoldLog(), HoldBook(table_max=40)
    log.client(*[at(due) for due in range(40)])
    _fold(book, log)
    serial = _spilled(book)
    log.client(*[cancel(ticket) for ticket in range(38)])
    _fold(book, log)
    assert book.runs() == [serial]
    log.client(cancel(38))
    _fold(book, log)
    assert book.runs() == []
    assert [hold.ticket for hold in book.held()] == [39]
    assert book.next_due(Axis.WALL) == 39


def test_a_hold_that_is_moved_leaves_its_run():
    log, book = HoldLog(), HoldBook(table_max=2)
    log.client(at(10, b"a"), at(20))
    _fold(book, log)
    _spilled(book)
    log.client(move(b"a", at(30)))
    _fold(book, log)
    found = book.find(0)
    assert found is not None
    assert (found.due_ms, found.message_id, found.offset) == (30, b"a", 0)
    due = book.due(wall_ms=99, steady_ms=0, count_max=9, bytes_max=EVER)
    assert [hold.ticket for hold in due] == [1, 0]


def test_schedules_stay_in_memory():
    log, book = HoldLog(), HoldBook(table_max=1)
    log.client(cron(b"daily"), at(20))
    _fold(book, log)
    _spilled(book)
    found = book.find_id(b"daily")
    assert found is not None
    assert found.schedule == "0 9 * * *"
    assert [hold.ticket for hold in book.held()] == [0, 1]


def test_a_table_full_of_schedules_is_not_written_again_and_again():
    log, book = HoldLog(), HoldBook(table_max=2)
    log.client(*[cron(b"%d" % number) for number in range(9)], at(20))
    _fold(book, log)
    assert book.try_freeze() is None
    log.client(at(30))
    _fold(book, log)
    _spilled(book)
    assert book.try_freeze() is None


def test_at_most_two_tables_wait_to_be_written():
    log, book = HoldLog(), HoldBook(table_max=1)
    spills = []
    for due_ms in range(4):
        log.client(at(due_ms))
        _fold(book, log)
        spills.append(book.try_freeze())
    assert [spill is not None for spill in spills] == [True, True, False, False]
    assert book.pending == 4


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 60, -1])
def test_a_buffer_that_is_no_run_is_refused(cut):
    holds = [Hold(ticket, 5, Axis.WALL, ticket, 1, b"id") for ticket in range(3)]
    data = encode_run(holds)
    with pytest.raises(ValueError, match=r"cut|bytes of ids"):
        HoldRun(memoryview(data[:cut]))
    with pytest.raises(ValueError, match="byte order"):
        HoldRun(memoryview(data[:12] + b"?" + data[13:]))


def test_S11_of_very_many_holds_with_one_id_the_newest_is_found_without_a_look_at_the_others():
    log, book = HoldLog(), HoldBook(table_max=4_000)
    for _ in range(2):
        log.client(*[at(10**6 + due, b"same") for due in range(4_000)])
        _fold(book, log)
        if not book.runs():
            _spilled(book)
    for newest in reversed(range(4_000 - 100, 8_000)):  # in the table, and then in the run
        found = book.find_id(b"same")
        assert found is not None
        assert found.ticket == newest
        book.fold([Closed(newest, HoldEnding.CANCELLED)], offset=8_000)


def test_ids_whose_hashes_are_equal_are_told_apart():
    same = b"plumless", b"buckeroo"  # CRC-32 has the same value for both
    holds = [Hold(ticket, 10, Axis.WALL, ticket, 5, same[ticket % 2]) for ticket in range(6)]
    run = HoldRun(memoryview(encode_run(holds)))
    for expected in (5, 3, 1, None):
        found = run.find_id(same[1])
        assert (None if found is None else found.ticket) == expected
        if found is not None:
            run.take(found.ticket)
    left = run.find_id(same[0])
    assert left is not None
    assert left.ticket == 4
