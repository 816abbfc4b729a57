"""All that a book can be asked, to compare two."""

from __future__ import annotations

from tests.unit.delivery.holds.any_log import ID
from tests.unit.delivery.holds.hold_log import HoldLog
from tidemill.delivery.holds.hold import Axis
from tidemill.delivery.holds.hold_book import HoldBook

EVER = 1 << 62


def answers(book: HoldBook, log: HoldLog) -> list[object]:
    """All that a book can be asked."""
    tickets = range(log.end + 1)
    due = book.due(wall_ms=EVER, steady_ms=EVER, count_max=99, bytes_max=EVER)
    some = book.due(wall_ms=2, steady_ms=0, count_max=2, bytes_max=EVER)
    return [
        [book.find(ticket) for ticket in tickets],
        [list(book.held(start)) for start in tickets],
        [sum(book.bytes_below(end)) for end in tickets],
        list(due),
        list(some),
        book.find_id(ID),
        [book.next_due(axis) for axis in Axis],
        (book.floor(), book.pending, book.pending_bytes),
    ]
