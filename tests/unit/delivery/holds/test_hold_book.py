"""What a partition holds, folded from real batches."""

from __future__ import annotations

from tests.unit.delivery.holds.hold_log import (
    STAMP_MS,
    HoldLog,
    after,
    at,
    cancel,
    copy,
    cron,
    move,
    open_tickets,
    released,
)
from tidemill.delivery.holds.events import HoldEnding
from tidemill.delivery.holds.hold import DUE_TO_BE_PLANNED, Axis
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.wire import compression

EVER = 1 << 62
NO_HEADERS: list[tuple[str, bytes | None]] = []


def _due(
    book: HoldBook, wall_ms: int, steady_ms: int = 0, *, count_max: int = 99, bytes_max: int = EVER
) -> list[int]:
    found = book.due(wall_ms=wall_ms, steady_ms=steady_ms, count_max=count_max, bytes_max=bytes_max)
    return [hold.ticket for hold in found]


def test_a_held_record_opens_its_own_offset_and_its_neighbours_open_nothing():
    log = HoldLog()
    log.plain(NO_HEADERS)
    log.client(NO_HEADERS, at(500), [("other", b"1")], after(50), codec=compression.GZIP)
    book = log.book()
    assert open_tickets(book) == [2, 4]
    wall, steady = book.held()
    assert (wall.due_ms, wall.axis, wall.offset) == (500, Axis.WALL, 2)
    assert (steady.due_ms, steady.axis) == (STAMP_MS + 50, Axis.STEADY)
    assert book.pending == 2
    assert book.pending_bytes == wall.size_bytes + steady.size_bytes
    assert book.newest_stamp_ms == STAMP_MS
    assert book.next_offset == log.end == 5


def test_I31_nothing_is_due_one_millisecond_early_on_its_own_axis():
    log = HoldLog()
    log.client(at(500), after(50))
    book = log.book()
    assert _due(book, 499, STAMP_MS + 49) == []
    assert _due(book, 500, STAMP_MS + 49) == [0]
    assert _due(book, 499, STAMP_MS + 50) == [1]
    assert _due(book, EVER, 0) == [0]
    assert _due(book, 0, EVER) == [1]


def test_what_is_due_comes_by_due_time_and_then_by_ticket():
    log = HoldLog()
    log.client(at(30), at(10), at(20), at(10))
    book = log.book()
    assert _due(book, 30) == [1, 3, 2, 0]
    assert _due(book, 30, count_max=2) == [1, 3]
    assert _due(book, 30) == [1, 3, 2, 0], "they stay open until a release is folded in"
    assert (book.next_due(Axis.WALL), book.next_due(Axis.STEADY)) == (10, None)


def test_one_record_is_due_however_few_bytes_are_allowed():
    log = HoldLog()
    log.client(at(10), at(20))
    book = log.book()
    assert _due(book, 30, bytes_max=1) == [0]
    size_bytes = book.pending_bytes // 2
    assert _due(book, 30, bytes_max=2 * size_bytes) == [0, 1]


def test_a_release_closes_its_tickets_and_a_second_one_nothing():
    log = HoldLog()
    log.client(at(10), at(20))
    log.ours(released(0))
    log.ours(released(0))
    book = log.book()
    assert open_tickets(book) == [1]
    assert book.find(0) is None
    assert book.ending_of(0) is HoldEnding.RELEASED
    assert book.next_due(Axis.WALL) == 20
    assert book.pending == 1


def test_a_release_of_a_ticket_whose_record_is_not_known_is_no_event():
    log = HoldLog()
    log.ours(released(77))
    assert open_tickets(log.book()) == []
    assert log.book().pending == 0


def test_of_cancel_and_release_the_first_in_the_log_wins():
    log = HoldLog()
    log.client(at(10), at(20))
    log.client(cancel(0))
    log.ours(released(0), released(1))
    log.client(cancel(1))
    book = log.book()
    assert open_tickets(book) == []
    assert book.ending_of(0) is HoldEnding.CANCELLED
    assert book.ending_of(1) is HoldEnding.RELEASED


def test_headers_that_a_client_made_never_count():
    log = HoldLog()
    log.client(at(10))
    log.plain(released(0), cancel(0))
    log.client(released(0), copy(0, 99, at(20)))
    book = log.book()
    assert open_tickets(book) == [0, 4], "the forwarded copy is a held record of its own"
    assert [hold.due_ms for hold in book.held()] == [10, 20]


def test_a_command_names_an_id_and_means_the_newest_open_one():
    log = HoldLog()
    log.client(at(10, b"a"), at(20, b"a"), at(30, b"42"))
    log.client(cancel(b"a"))
    book = log.book()
    assert open_tickets(book) == [0, 2]
    found = book.find_id(b"a")
    assert found is not None
    assert found.ticket == 0
    assert book.ending_of(b"a") is HoldEnding.CANCELLED
    log.client(cancel(b"id:42"))
    assert open_tickets(log.book()) == [0]


def test_I45_of_two_holds_with_one_id_a_command_means_the_one_with_the_higher_copy():
    log = HoldLog()
    log.client(at(10, b"a"))
    log.client(at(20, b"a"))
    start = log.carried(copy(0, 10, at(10, b"a")))
    log.client(cancel(b"a"))
    assert open_tickets(log.book()) == [1]
    assert open_tickets(log.book(start)) == [], "a replica without ticket 1 cancels the same one"


def test_digits_alone_are_a_ticket_even_if_an_id_is_the_same():
    log = HoldLog()
    log.client(at(10, b"1"), at(20))
    log.client(cancel(b"1"))
    assert open_tickets(log.book()) == [0]


def test_a_move_changes_due_time_and_axis():
    log = HoldLog()
    log.client(at(10), after(50))
    log.client(move(0, at(70)), move(1, at(60)))
    book = log.book()
    assert _due(book, 69, EVER) == [1]
    assert _due(book, 70) == [1, 0]
    log.client(move(1, after(5)), stamp_ms=STAMP_MS + 100)
    book = log.book()
    assert _due(book, EVER, STAMP_MS + 104) == [0]
    assert _due(book, 0, STAMP_MS + 105) == [1]


def test_a_hold_that_is_moved_away_and_back_is_due_once():
    log = HoldLog()
    log.client(at(10))
    log.client(move(0, at(70)))
    log.client(move(0, at(10)))
    assert _due(log.book(), 99) == [0]


def test_a_move_to_nowhere_changes_nothing():
    log = HoldLog()
    log.client(at(10))
    log.client(move(0, []), move(9, at(5)))
    assert _due(log.book(), 99) == [0]
    assert log.book().next_due(Axis.WALL) == 10


def test_a_carried_copy_replaces_the_copy_before_it():
    log = HoldLog()
    log.client(at(10), at(20))
    log.carried(copy(0, 15, at(10)))
    book = log.book()
    book.settle(log.end)
    assert open_tickets(book) == [1, 0]
    carried = book.find(0)
    assert carried is not None
    assert (carried.offset, carried.due_ms, book.pending) == (2, 15, 2)
    assert book.floor() == 1
    log.ours(released(0))
    assert open_tickets(log.book()) == [1]


def test_a_carried_copy_keeps_the_axis():
    log = HoldLog()
    log.client(after(10))
    log.carried(copy(0, STAMP_MS + 10, after(10), b"steady"))
    (hold,) = log.book().held()
    assert (hold.axis, hold.due_ms) == (Axis.STEADY, STAMP_MS + 10)


def test_a_schedule_is_planned_by_a_carried_copy_and_moved_by_its_ticks():
    log = HoldLog()
    log.client(cron(b"daily"))
    (hold,) = log.book().held()
    assert hold.needs_plan
    assert (hold.schedule, hold.due_ms) == ("0 9 * * *", DUE_TO_BE_PLANNED)
    log.carried(copy(0, STAMP_MS + 100, cron(b"daily")))
    (hold,) = log.book().held()
    assert not hold.needs_plan
    log.ours(released(0, next_ms=STAMP_MS + 200))
    (hold,) = log.book().held()
    assert (hold.ticket, hold.due_ms, hold.axis) == (0, STAMP_MS + 200, Axis.WALL)


def test_a_schedule_takes_the_place_of_the_one_with_its_id_and_of_nothing_else():
    log = HoldLog()
    log.client(cron(b"daily"), at(5, b"daily"), cron(b"weekly"))
    log.client(cron(b"daily", b"0 10 * * *"))
    book = log.book()
    assert open_tickets(book) == [1, 2, 3]
    assert book.ending_of(0) is HoldEnding.CANCELLED


def test_a_transaction_opens_its_holds_at_the_commit_marker():
    log = HoldLog()
    log.client(at(10), producer_id=7)
    log.client(at(5), producer_id=8)
    book = log.book()
    assert (_due(book, 99), book.pending, book.floor()) == ([], 2, 0)
    assert book.find(0) is None
    log.marker(7, is_commit=True)
    assert _due(log.book(), 99) == [0]


def test_a_transaction_that_aborts_opens_nothing_ever():
    log = HoldLog()
    log.client(at(10), producer_id=7)
    log.marker(7, is_commit=False)
    log.marker(7, is_commit=True)
    book = log.book()
    assert (open_tickets(book), book.pending, book.pending_bytes) == ([], 0, 0)


def test_a_later_transaction_of_the_producer_is_its_own():
    log = HoldLog()
    log.client(at(10), producer_id=7)
    log.marker(7, is_commit=False)
    log.client(at(20), producer_id=7)
    log.marker(7, is_commit=True)
    assert open_tickets(log.book()) == [2]


def test_the_floor_is_the_oldest_copy_that_is_open_or_whose_end_may_be_cut():
    log = HoldLog()
    log.client(at(10), at(20), at(30))
    log.ours(released(1))
    log.ours(released(0))
    book = log.book()
    assert book.floor() == 0
    book.settle(log.end - 1)
    assert book.floor() == 0, "the release of ticket 0 is not durable"
    book.settle(log.end)
    assert book.floor() == 2
    log.ours(released(2))
    book = log.book()
    book.settle(log.end)
    assert book.floor() is None


def test_a_cut_is_a_replay_from_the_floor_and_opens_what_was_closed():
    log = HoldLog()
    log.plain(NO_HEADERS)
    log.client(at(10), at(20))
    cut_at = log.ours(released(1))
    log.ours(released(2))
    book = log.book()
    start = book.replay_from(cut_at)
    assert start == 1
    book.cut(cut_at)
    log.cut(cut_at)
    log.fold_into(book, start)
    assert open_tickets(book) == [1, 2]
    assert book.next_offset == cut_at


def test_a_cut_below_what_was_durable_needs_the_whole_log():
    log = HoldLog()
    log.client(at(10))
    log.ours(released(0))
    book = log.book()
    book.settle(log.end)
    assert book.replay_from(log.end) == log.end
    assert book.replay_from(1) == 0


def test_a_due_time_that_cannot_be_read_is_never():
    log = HoldLog()
    log.client([("tidemill.deliver-at", b"soon")], [("tidemill.delay-ms", b"9" * 19)])
    book = log.book()
    assert _due(book, EVER, EVER) == []
    assert book.pending == 2
