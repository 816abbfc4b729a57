"""Partitions in order, and the best swap between two brokers, found in steps. Pure.

A plan looks at tens of thousands of partitions, so it yields after every few hundred (S11).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import merge
from typing import NamedTuple, final

from tidemill.core.ids import TopicPartition
from tidemill.core.limits import PARTITIONS_PLANNED_PER_SLICE
from tidemill.core.loop.steps import Steps

__all__ = ["Rank", "Swap", "best_swap", "in_order", "partition_of", "rank_of", "set_ranked"]

Rank = tuple[int, int, str]
"""Size, partition and topic: of one size, in this order, some of every topic come first."""

WORTH = 4
"""A swap copies at most so many times the bytes by which it changes either broker."""


def rank_of(name: TopicPartition, size_bytes: int = 0) -> Rank:
    return size_bytes, name.partition, name.topic


def partition_of(rank: Rank) -> TopicPartition:
    return TopicPartition(rank[2], rank[1])


def in_order(ranks: Iterable[Rank]) -> Steps[list[Rank]]:
    """All of them sorted."""
    runs: list[list[Rank]] = []
    for seen, rank in enumerate(ranks):
        if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
            if runs:
                runs[-1].sort()
                yield
            runs.append([])
        runs[-1].append(rank)
    if runs:
        runs[-1].sort()
    ordered: list[Rank] = []
    for rank in merge(*runs):
        ordered.append(rank)
        if len(ordered) % PARTITIONS_PLANNED_PER_SLICE == 0:
            yield
    return ordered


def set_ranked(ranks: list[Rank], rank: Rank, *, is_in: bool) -> None:
    """Put one into a list that is in order, or take it out; it may be so already."""
    at = bisect_left(ranks, rank)
    was_in = at < len(ranks) and ranks[at] == rank
    if is_in and not was_in:
        ranks.insert(at, rank)
    elif was_in and not is_in:
        del ranks[at]


@final
class Swap(NamedTuple):
    """One replica for another one, or for nothing."""

    gain: int
    """Half of the bytes by which the difference of the two brokers shrinks."""
    given: TopicPartition
    taken: TopicPartition | None


def best_swap(
    given: Sequence[Rank], taken: Sequence[Rank], gap: int, *, may_take_nothing: bool
) -> Steps[Swap | None]:
    """The swap after which two brokers that differ by `gap` bytes differ least.

    `given` and `taken` are in order. The large ones come first, from the largest whose swap can
    gain something: it changes a broker by two fifths of its bytes at least. None gains more bytes
    than it has, or more than half of the gap, so the search ends early.
    """
    best: Swap | None = None
    gain = 0
    for at in range(_first_above(given, gap * (WORTH + 1) // 2) - 1, -1, -1):
        if at % PARTITIONS_PLANNED_PER_SLICE == 0:
            yield
        size = given[at][0]
        if size <= gain or gain >= gap // 2:
            break
        for other_size, other in _partners(taken, size, gap, may_take_nothing=may_take_nothing):
            change = size - other_size
            if min(change, gap - change) > gain:
                gain = min(change, gap - change)
                best = Swap(gain, partition_of(given[at]), other)
    return best


def _partners(
    taken: Sequence[Rank], size: int, gap: int, *, may_take_nothing: bool
) -> list[tuple[int, TopicPartition | None]]:
    """What could come back for a replica of this size: the nearest to what would be best."""
    highest = size * (WORTH - 1) // (WORTH + 1)
    after = _first_above(taken, min(size - gap // 2, highest))
    found: list[tuple[int, TopicPartition | None]] = [(0, None)] if may_take_nothing else []
    found += [
        (rank[0], partition_of(rank))
        for rank in taken[max(0, after - 1) : after + 1]
        if rank[0] <= highest
    ]
    return found


def _first_above(ranks: Sequence[Rank], size: int) -> int:
    return bisect_left(ranks, (size + 1, -1, ""))
