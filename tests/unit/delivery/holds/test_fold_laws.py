"""The laws of the fold, for any log: I45, and what a hold is by definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.delivery.holds.any_log import any_log
from tests.unit.delivery.holds.hold_log import STAMP_MS, HoldLog, number, open_tickets
from tidemill.delivery.holds.events import (
    Carried,
    Closed,
    HoldEvent,
    Moved,
    Opened,
    TransactionEnded,
)
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.wire import header_names as names

pytestmark = pytest.mark.slow  # by the count of examples

EVER = 1 << 62


def _starts(log: HoldLog) -> list[int]:
    return [header.base_offset for header, _ in log.read]


def _contents(book: HoldBook) -> tuple[object, ...]:
    due = book.due(wall_ms=EVER, steady_ms=EVER, count_max=99, bytes_max=EVER)
    return list(book.held()), list(due), book.pending, book.pending_bytes


@given(any_log(), st.data())
def test_I45_the_fold_from_any_start_up_to_the_floor_gives_the_same_holds(log, data):
    book = log.book()
    book.settle(data.draw(st.integers(0, log.end)))
    floor = book.floor()
    for start in _starts(log):
        if floor is None or start <= floor:
            assert _contents(log.book(start)) == _contents(book)


@given(any_log())
def test_I45_a_later_start_lacks_the_older_copies_and_nothing_else(log):
    whole = list(log.book().held())
    for start in _starts(log):
        assert list(log.book(start).held()) == [hold for hold in whole if hold.offset >= start]


@given(any_log(), st.data())
def test_a_cut_and_a_replay_from_where_the_book_says_give_the_state_of_the_shorter_log(log, data):
    book = log.book()
    offset = data.draw(st.sampled_from([*_starts(log), log.end]))
    book.settle(data.draw(st.integers(0, offset)))
    start = book.replay_from(offset)
    book.cut(offset)
    log.cut(offset)
    log.fold_into(book, start)
    assert _contents(book) == _contents(log.book())


@given(any_log(), st.data())
def test_the_floor_keeps_all_that_any_later_cut_above_the_durable_offset_opens_again(log, data):
    book = log.book()
    durable = data.draw(st.integers(0, log.end))
    book.settle(durable)
    floor = book.floor()
    for offset in _starts(log):
        if offset >= durable:
            held = list(log.shorter(offset).book().held())
            assert not held or (floor is not None and floor <= held[0].offset)


def _open_by_definition(log: HoldLog) -> dict[int, tuple[int, int, Axis]]:
    """Open tickets with copy, due time and axis: found by looking ahead, without a state."""
    events = [event for _, events in log.read for event in events]
    found: dict[int, tuple[int, int, Axis]] = {}
    for at, event in enumerate(events):
        if isinstance(event, Opened | Carried):
            found.pop(event.hold.ticket, None)
            hold = _survivor(event, events[at + 1 :])
            if hold is not None:
                found[hold.ticket] = hold.offset, hold.due_ms, hold.axis
    return found


def _survivor(opened: Opened | Carried, later: list[HoldEvent]) -> Hold | None:
    """What is left of this copy at the end, if nothing takes its place."""
    hold = opened.hold
    producer_id = opened.producer_id if isinstance(opened, Opened) else None
    for event in later:
        match event:
            case Closed(target, _) if target == hold.ticket:
                return None
            case Moved(target, due_ms, axis) if target == hold.ticket:
                hold = hold._replace(due_ms=due_ms, axis=axis)
            case TransactionEnded(ended, is_commit) if ended == producer_id:
                if not is_commit:
                    return None
                producer_id = None
            case _:
                pass
    return hold if producer_id is None else None


@given(any_log(ids=False))
def test_a_ticket_is_open_if_it_was_decided_and_nothing_behind_its_newest_copy_names_it(log):
    book = log.book()
    held = {hold.ticket: (hold.offset, hold.due_ms, hold.axis) for hold in book.held()}
    assert held == _open_by_definition(log)


@given(any_log(), st.integers(0, 20))
def test_answers_that_a_client_forwards_never_count(log, ticket):
    before = _contents(log.book())
    forged = [
        [number(names.TICKET, ticket)],
        [number(names.TICKET, ticket), number(names.NEXT, 1)],
        [number(names.TICKET, ticket), number(names.DUE, 1), (names.AXIS, b"wall")],
    ]
    log.client(*forged)
    log.plain(*forged)
    assert _contents(log.book()) == before


@given(any_log(), st.integers(0, 8), st.integers(0, 8))
def test_I31_exactly_what_is_due_on_its_own_axis_is_due(log, wall_ms, passed_ms):
    book = log.book()
    steady_ms = STAMP_MS + passed_ms
    found = book.due(wall_ms=wall_ms, steady_ms=steady_ms, count_max=99, bytes_max=EVER)
    now = {Axis.WALL: wall_ms, Axis.STEADY: steady_ms}
    expected = [hold for hold in book.held() if hold.due_ms <= now[hold.axis]]
    assert list(found) == sorted(expected, key=lambda hold: (hold.due_ms, hold.ticket))
    for axis in Axis:
        dues = [hold.due_ms for hold in book.held() if hold.axis is axis]
        assert book.next_due(axis) == min(dues, default=None)


@given(any_log(), st.integers(1, 3))
def test_releasing_what_is_due_until_nothing_is_delivers_each_ticket_once(log, count_max):
    book = log.book()
    expected = sorted(open_tickets(book))
    delivered: list[int] = []
    while found := book.due(wall_ms=EVER, steady_ms=EVER, count_max=count_max, bytes_max=EVER):
        tickets = [hold.ticket for hold in found]
        delivered += tickets
        log.ours(*[[number(names.TICKET, ticket)] for ticket in tickets])
        book.fold(log.read[-1][1], offset=log.end)
    assert sorted(delivered) == expected
    assert book.pending_bytes == sum(hold.size_bytes for _, hold in book._undecided)
