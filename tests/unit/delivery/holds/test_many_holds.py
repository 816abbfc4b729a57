"""Many holds that one batch opens or ends are the same as each of them by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.delivery.holds.any_log import any_log
from tests.unit.delivery.holds.book_answers import answers
from tests.unit.delivery.holds.hold_log import HoldLog, after, at, cancel, number, released
from tidemill.delivery.holds.events import ClosedMany, Opened, OpenedMany, events_of
from tidemill.delivery.holds.hold import DUE_NEVER
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_shelves import Spill
from tidemill.wire import compression
from tidemill.wire import header_names as names


def _fold(book: HoldBook, log: HoldLog, *, many_min: int) -> None:
    for data, (header, _) in zip(log.batches, log.read, strict=True):
        book.fold(events_of(data, header, many_min=many_min), offset=header.next_offset)


@pytest.mark.slow
@given(any_log(), st.integers(1, 3), st.data())
def test_a_book_answers_alike_however_many_holds_make_one_event(log, table_max, data):
    single, many = HoldBook(), HoldBook(table_max=table_max)
    waiting: list[Spill] = []
    for batch, (header, _) in zip(log.batches, log.read, strict=True):
        single.fold(events_of(batch, header, many_min=1_000), offset=header.next_offset)
        many.fold(events_of(batch, header, many_min=1), offset=header.next_offset)
        spill = many.try_freeze()
        if spill is not None:
            waiting.append(spill)
        while waiting and data.draw(st.booleans()):
            spill = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            many.adopt(spill.serial, memoryview(spill.encode()))
        assert answers(many, log) == answers(single, log)


@given(
    dues=st.lists(st.integers(0, 40), min_size=40, max_size=90),
    ended=st.sets(st.integers(0, 39), min_size=1),
    codec=st.sampled_from([compression.NONE, compression.LZ4]),
)
def test_a_long_batch_in_any_order_of_due_times_is_spilled_and_released_like_single_holds(
    dues, ended, codec
):
    log = HoldLog()
    log.client(*[at(due, b"id-%d" % due if due % 3 else None) for due in dues], codec=codec)
    log.client(*[after(due) for due in dues])
    log.ours(*[released(ticket) for ticket in sorted(ended) * 40][:90])
    log.client(cancel(b"id-7"), cancel(len(dues)))
    single, many = HoldBook(), HoldBook(table_max=50)
    _fold(single, log, many_min=1_000)
    _fold(many, log, many_min=32)
    assert answers(many, log) == answers(single, log)
    spill = many.try_freeze()
    assert spill is not None
    many.adopt(spill.serial, memoryview(spill.encode()))
    assert answers(many, log) == answers(single, log)


def test_what_is_taken_from_a_strand_while_it_is_written_stays_taken():
    log, book = HoldLog(), HoldBook(table_max=60)
    log.client(*[after(due) for due in range(64)])
    _fold(book, log, many_min=32)
    spill = book.try_freeze()
    assert spill is not None
    log.ours(*[released(ticket) for ticket in range(40)])
    header, events = log.read[-1]
    assert isinstance(events[0], ClosedMany)
    book.fold(events, offset=header.next_offset)
    assert book.adopt(spill.serial, memoryview(spill.encode()))
    assert [hold.ticket for hold in book.held()] == list(range(40, 64))


def test_one_that_is_odd_among_many_is_read_by_itself_in_its_place():
    log = HoldLog()
    records = [after(5) for _ in range(80)]
    records[40] = [number(names.DELAY_MS, 10**18), ("other", b"")]
    log.client(*records)
    _, first, odd, last = log.read[0][1]
    assert isinstance(first, OpenedMany)
    assert isinstance(odd, Opened)
    assert isinstance(last, OpenedMany)
    assert (len(first.holds), odd.hold.ticket, len(last.holds)) == (40, 40, 39)
    assert odd.hold.due_ms < DUE_NEVER


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 40)), min_size=1, max_size=90),
    st.integers(1, 60),
)
def test_a_transaction_with_many_holds_opens_them_like_single_ones(asked, table_max):
    requests = [
        at(due, b"id-%d" % due if due % 3 else None) if is_date else after(due)
        for is_date, due in asked
    ]
    sent, single = HoldLog(), HoldLog()
    sent.client(*requests, producer_id=7)
    single.client(*requests)
    for log in (sent, single):  # others are opened before the marker comes, with higher tickets
        log.client(*[after(30)] * 40)
        log.marker(7, is_commit=True)
        log.ours(*[released(ticket) for ticket in range(0, log.end, 2)][:60])
        log.client(cancel(b"id-7"))
    committed = HoldBook(table_max=table_max)
    for header, events in sent.read:
        committed.fold(events, offset=header.next_offset)
        spill = committed.try_freeze()
        if spill is not None:
            committed.adopt(spill.serial, memoryview(spill.encode()))
    assert answers(committed, sent) == answers(single.book(), single)


def test_the_holds_of_a_transaction_wait_for_its_end_however_many_they_are():
    log = HoldLog()
    log.client(*[after(5) for _ in range(80)], producer_id=7)
    assert log.book().undecided == 80
    log.marker(7, is_commit=True)
    assert (log.book().undecided, log.book().pending) == (0, 80)
