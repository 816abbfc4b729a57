"""Which shelves may have a ticket.

Tickets rise, so most of a shelf are above all of the shelves before it: its *own* ones. Their
ranges do not overlap, and the one shelf for a ticket is found by bisection. Holds that were
carried, moved or decided late come to a shelf after others with higher tickets: they are *foreign*
there, and of those each shelf has one range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, final

__all__ = ["TicketRange", "TicketRoutes"]


class TicketRange(NamedTuple):
    """The tickets of one shelf; -1 for a range that is empty."""

    own_low: int
    own_high: int
    foreign_low: int
    foreign_high: int


@final
class TicketRoutes:
    """The ranges of all shelves but the growing one."""

    def __init__(self) -> None:
        self._own_lows: list[int] = []
        self._own_serials: list[int] = []
        """Of the shelves with own tickets, rising as `_own_lows` do."""
        self._foreign: dict[int, TicketRange] = {}
        self._ranges: dict[int, TicketRange] = {}
        self._own_high = -1

    def add(self, serial: int, tickets: Collection[int]) -> None:
        """A shelf with these tickets."""
        foreign = [ticket for ticket in tickets if ticket <= self._own_high]
        own_low, own_high = -1, -1
        if len(foreign) < len(tickets):
            own_low = min([ticket for ticket in tickets if ticket > self._own_high])
            own_high = max(tickets)
        foreign_low, foreign_high = min(foreign, default=-1), max(foreign, default=-1)
        self.restore(serial, TicketRange(own_low, own_high, foreign_low, foreign_high))

    def restore(self, serial: int, tickets: TicketRange) -> None:
        """A shelf whose ranges are known; shelves come in the order in which they were added."""
        self._ranges[serial] = tickets
        if tickets.own_high >= 0:
            self._own_lows.append(tickets.own_low)
            self._own_serials.append(serial)
            self._own_high = tickets.own_high
        if tickets.foreign_high >= 0:
            self._foreign[serial] = tickets

    def range_of(self, serial: int) -> TicketRange:
        return self._ranges[serial]

    def drop(self, serial: int) -> None:
        self._foreign.pop(serial, None)
        if self._ranges.pop(serial).own_high >= 0:
            at = self._own_serials.index(serial)
            del self._own_serials[at], self._own_lows[at]

    def merge(self, serial: int, parts: Sequence[int]) -> None:
        """One shelf has all tickets of these, which were added one after the other."""
        ranges = [self._ranges[part] for part in parts]
        for part in parts:
            self.drop(part)
        own = [one for one in ranges if one.own_high >= 0]
        foreign = [one for one in ranges if one.foreign_high >= 0]
        merged = TicketRange(
            min([one.own_low for one in own], default=-1),
            max([one.own_high for one in own], default=-1),
            min([one.foreign_low for one in foreign], default=-1),
            max([one.foreign_high for one in foreign], default=-1),
        )
        self._ranges[serial] = merged
        if own:
            at = bisect_right(self._own_lows, merged.own_low)
            self._own_lows.insert(at, merged.own_low)
            self._own_serials.insert(at, serial)
        if (
            foreign
            and not merged.own_low <= merged.foreign_low <= merged.foreign_high <= merged.own_high
        ):
            self._foreign[serial] = merged

    def shelves_of(self, ticket: int) -> Iterator[int]:
        """Their serials, the most likely one first."""
        at = bisect_right(self._own_lows, ticket) - 1
        if at >= 0:
            yield self._own_serials[at]
        for serial, tickets in self._foreign.items():
            if tickets.foreign_low <= ticket <= tickets.foreign_high:
                yield serial
