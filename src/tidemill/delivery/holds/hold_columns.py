"""Many holds at once, as columns of numbers: what one batch or one transaction opened."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import final

from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.hot.hold_scan import is_rising

__all__ = ["MANY_MIN", "HoldColumns", "columns_of"]

MANY_MIN = 32
"""Holds that come at once, from which on they are kept as columns."""


@final
class HoldColumns:
    """Holds that came at once: on one axis, each at its own ticket, none of them a schedule.

    Columns never change once they are here.
    """

    __slots__ = ("axis", "dues", "ids", "is_rising", "size_bytes", "sizes", "tickets")

    def __init__(
        self,
        axis: Axis,
        *,
        tickets: array[int],
        dues: array[int],
        sizes: array[int],
        ids: Sequence[bytes | None] | None,
        size_bytes: int,
        is_rising: bool,
    ) -> None:
        self.axis = axis
        self.tickets = tickets
        """Rising."""
        self.dues = dues
        self.sizes = sizes
        self.ids = ids
        """None: no record has an id."""
        self.size_bytes = size_bytes
        """Of all."""
        self.is_rising = is_rising
        """No due time is below the one before."""

    def __len__(self) -> int:
        return len(self.tickets)

    def __iter__(self) -> Iterator[Hold]:
        ids = self.ids or (None,) * len(self.tickets)
        rows = zip(self.tickets, self.dues, self.sizes, ids, strict=True)
        for ticket, due_ms, size_bytes, message_id in rows:
            yield Hold(ticket, due_ms, self.axis, ticket, size_bytes, message_id)


def columns_of(axis: Axis, holds: Sequence[Hold]) -> HoldColumns:
    """These holds, all on this axis, by ticket, and each at its own."""
    dues = array("q", [hold.due_ms for hold in holds])
    ids = [hold.message_id for hold in holds]
    sizes = array("q", [hold.size_bytes for hold in holds])
    return HoldColumns(
        axis,
        tickets=array("q", [hold.ticket for hold in holds]),
        dues=dues,
        sizes=sizes,
        ids=ids if any(ids) else None,
        size_bytes=sum(sizes),
        is_rising=is_rising(dues),
    )
