"""Where a view has no match: ranges of offsets that later readers jump over.

Only ranges of some length are kept (`MATCHLESS_BYTES_MIN`). What is committed does not change under
its offset, and compaction only takes records away, so a range stays true while its partition is led
in the same epoch; the cache is asked with the epoch, and an unclean election has another one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from typing import final

from tidemill.core.limits import MATCHLESS_RANGES_MAX

__all__ = ["MatchlessCache", "MatchlessRanges"]


@final
class MatchlessRanges:
    """Ranges of one partition of a view: sorted, disjoint, not even touching each other."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts = array("q")
        self._ends = array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def end_from(self, offset: int) -> int:
        """The first offset from `offset` on that is not known to have no match."""
        place = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[place]) if place >= 0 else offset

    def add(self, start: int, end: int) -> None:
        """Nothing from `start` to before `end` matches."""
        low = bisect_right(self._starts, start)
        if low and self._ends[low - 1] >= start:
            low -= 1
            start, end = self._starts[low], max(end, self._ends[low])
        high = bisect_right(self._starts, end)
        if high > low:
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = array("q", [start])
        self._ends[low:high] = array("q", [end])


@final
class MatchlessCache:
    """The ranges of all views; those not used for longest go first."""

    def __init__(self, ranges_max: int = MATCHLESS_RANGES_MAX) -> None:
        self._ranges_max = ranges_max
        self._by_key: OrderedDict[Hashable, MatchlessRanges] = OrderedDict()
        self._count = 0
        """Ranges, and one for each key."""

    def ranges(self, key: Hashable) -> MatchlessRanges:
        """The ranges under a key, to look at; `add` changes them."""
        found = self._by_key.get(key)
        if found is None:
            return MatchlessRanges()
        self._by_key.move_to_end(key)
        return found

    def add(self, key: Hashable, start: int, end: int) -> None:
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = MatchlessRanges()
            self._count += 1
        before = len(found)
        found.add(start, end)
        self._count += len(found) - before
        while self._count > self._ranges_max:
            _, dropped = self._by_key.popitem(last=False)
            self._count -= len(dropped) + 1
