"""Many holds at once, as columns of numbers: what one batch opened, without an object for each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import final

from tidemill.delivery.holds.hold import Axis, Hold

__all__ = ["HoldColumns"]


@final
class HoldColumns:
    """Holds that one batch opened: on one axis, each at its own ticket, none of them a schedule.

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
