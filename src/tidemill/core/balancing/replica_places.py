"""An assignment of replicas to brokers while it is changed, step by step. Pure.

Each `try_` makes one step of a plan of `balance.py`, and is False when no step helps any more.
Every step brings what it evens closer together, so a plan ends: one replica goes from a broker to
one with fewer; a swap lessens the difference of two brokers in bytes, and leaves the numbers of
replicas as they were, or even.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from operator import attrgetter
from typing import NamedTuple, final

from tidemill.core.ids import TopicPartition

__all__ = ["TOLERANCE", "Assignment", "Plan", "ReplicaPlaces", "Sizes"]

Assignment = Mapping[TopicPartition, Sequence[int]]
Plan = dict[TopicPartition, tuple[int, ...]]
Sizes = Mapping[TopicPartition, int]

TOLERANCE = 0.1
"""Brokers may differ by this part of the mean before anything is moved."""
WORTH = 4
"""A swap copies at most so many times the bytes by which it changes either broker."""
CHOSEN_FROM_MAX = 500
"""Replicas that are compared by size for one move."""


@final
class _Swap(NamedTuple):
    """One replica for another one, or for nothing."""

    gain: int
    """Half of the bytes by which the difference of the two brokers shrinks."""
    given: TopicPartition
    taken: TopicPartition | None


@final
class ReplicaPlaces:
    """An assignment that is being changed, with the load of each broker.

    `racks` has all known brokers, also those that may be given nothing now: what such a broker
    holds keeps its rack. `usable` are those that may be given replicas; None: all.
    """

    def __init__(
        self,
        assignment: Assignment,
        racks: Mapping[int, str],
        sizes: Sizes | None = None,
        fixed: Collection[TopicPartition] = (),
        *,
        usable: Collection[int] | None = None,
    ) -> None:
        usable = sorted(racks if usable is None else usable)
        self._before = assignment
        self._racks = racks
        self._fixed = frozenset(fixed)
        self._sizes = _all_sizes(assignment, sizes or {})
        self._unsized = assignment.keys() - (sizes or {}).keys()
        """They count as ones of middle size, which is no reason to swap one of them."""
        self._mean_bytes = sum(self._sizes.values()) // max(1, len(self._sizes))
        self._bytes: dict[int, int] = dict.fromkeys(usable, 0)
        self._now: Plan = {name: tuple(replicas) for name, replicas in assignment.items()}
        self._held: dict[int, dict[TopicPartition, None]] = {one: {} for one in usable}
        self._led: dict[int, dict[TopicPartition, None]] = {one: {} for one in usable}
        self._shared: dict[int, dict[int, dict[TopicPartition, None]]] = {one: {} for one in usable}
        """Of the partitions that a broker leads, those that each other broker holds too."""
        for name in sorted(self._now, key=attrgetter("partition", "topic")):
            self._count(name)  # in this order: who gives away gives some of every topic

    def of(self, name: TopicPartition) -> tuple[int, ...]:
        return self._now[name]

    def changes(self) -> Plan:
        return {
            name: replicas
            for name, replicas in sorted(self._now.items())
            if replicas != tuple(self._before[name])
        }

    def _count(self, name: TopicPartition) -> None:
        replicas = self._now[name]
        for one in replicas:
            if one in self._held:
                self._held[one][name] = None
                self._bytes[one] += self._sizes[name]
        if replicas and replicas[0] in self._led:
            self._led[replicas[0]][name] = None
            if name not in self._fixed:
                shared = self._shared[replicas[0]]
                for one in replicas[1:]:
                    shared.setdefault(one, {})[name] = None

    def _put(self, name: TopicPartition, replicas: tuple[int, ...]) -> None:
        before = self._now[name]
        for one in before:
            if one in self._held:
                del self._held[one][name]
                self._bytes[one] -= self._sizes[name]
        if before and before[0] in self._led:
            del self._led[before[0]][name]
            for one in before[1:]:
                del self._shared[before[0]][one][name]
        self._now[name] = replicas
        self._count(name)

    # --- single moves ----------------------------------------------------------------------------

    def try_move(self, name: TopicPartition, gone: int) -> bool:
        """Move the replica on `gone` to the best other broker, if there is one."""
        others = tuple(one for one in self._now[name] if one != gone)
        better = self._best(others)
        if better is None:
            return False
        self._replace(name, gone, better)
        return True

    def _best(self, others: Sequence[int]) -> int | None:
        """The broker for one more replica beside `others`."""
        free = [one for one in self._held if one not in others]
        used = {self._racks.get(one) for one in others}
        return min(
            free,
            key=lambda one: (self._racks[one] in used, len(self._held[one]), one),
            default=None,
        )

    def _replace(self, name: TopicPartition, gone: int, better: int) -> None:
        self._put(name, tuple(better if one == gone else one for one in self._now[name]))

    def resize(self, name: TopicPartition, factor: int) -> None:
        replicas = self._now[name]
        while len(replicas) < factor:
            more = self._best(replicas)
            if more is None:
                break
            replicas += (more,)
        self._put(name, replicas[:factor])

    # --- shares ----------------------------------------------------------------------------------

    def try_fill(self, joined: Collection[int], share: int) -> bool:
        """Move one replica to a broker that holds less than its share, from one with more."""
        by_load = sorted(self._held, key=lambda one: (len(self._held[one]), one))
        for empty in by_load:
            if len(self._held[empty]) >= share:
                break
            for full in reversed(by_load):
                if empty not in joined or len(self._held[full]) <= share:
                    break
                # So many replicas of middle size would have so many bytes.
                wanted = self._mean_bytes * (len(self._held[empty]) + 1) - self._bytes[empty]
                if self._try_move_one(full, empty, max(0, wanted)):
                    return True
        return False

    def try_fill_leaders(self, joined: Collection[int], share: int) -> bool:
        """Put a broker that leads less than its share first in one partition that it holds."""
        by_load = sorted(self._led, key=lambda one: (len(self._led[one]), one))
        for taker in by_load:
            if len(self._led[taker]) >= share:
                break
            for giver in reversed(by_load):
                if taker not in joined or len(self._led[giver]) <= share:
                    break
                if self._shared[giver].get(taker):
                    self._hand_over(giver, taker)
                    return True
        return False

    # --- balance ---------------------------------------------------------------------------------

    def try_even(self) -> bool:
        """Move one replica from a fuller broker to an emptier one; False if that helps no more."""
        by_load = sorted(self._held, key=lambda one: (len(self._held[one]), one))
        for full in reversed(by_load):
            for empty in by_load:
                if len(self._held[full]) - len(self._held[empty]) <= self._count_allowed:
                    break
                wanted = max(0, self._bytes[full] - self._bytes[empty]) // 2
                if self._try_move_one(full, empty, wanted):
                    return True
        return False

    @property
    def _count_allowed(self) -> int:
        """By how many replicas two brokers may differ."""
        total = sum(map(len, self._held.values()))
        return max(1, int(TOLERANCE * total / max(1, len(self._held))))

    def try_even_bytes(self) -> bool:
        """Swap a big replica for a small one, with the fullest broker or the emptiest."""
        by_bytes = sorted(self._bytes, key=lambda one: (self._bytes[one], one))
        allowed = TOLERANCE * sum(self._bytes.values()) / max(1, len(by_bytes))
        pairs = chain(
            ((by_bytes[-1], one) for one in by_bytes[:-1]),
            ((one, by_bytes[0]) for one in reversed(by_bytes[1:-1])),
        )
        for full, empty in pairs:
            if self._bytes[full] - self._bytes[empty] > allowed:
                swap = self._try_find_swap(full, empty)
                if swap is not None:
                    self._replace(swap.given, full, empty)
                    if swap.taken is not None:
                        self._replace(swap.taken, empty, full)
                    return True
        return False

    def _try_find_swap(self, full: int, empty: int) -> _Swap | None:
        """The swap after which the two differ least."""
        names = sorted(self._swappable(empty, full), key=self._sizes.__getitem__)
        sizes = [self._sizes[name] for name in names]
        back: list[TopicPartition | None] = [*names]
        if self._may_differ_more(full, empty):
            back.insert(0, None)
            sizes.insert(0, 0)
        best: _Swap | None = None
        gap = self._bytes[full] - self._bytes[empty]
        for given in self._swappable(full, empty):
            size = self._sizes[given]
            highest = size * (WORTH - 1) // (WORTH + 1)
            after = bisect_right(sizes, min(size - gap // 2, highest))
            for at in range(max(0, after - 1), min(after + 1, len(sizes))):
                change = size - sizes[at]
                gain = min(change, gap - change)
                if gain > (0 if best is None else best.gain) and sizes[at] <= highest:
                    best = _Swap(gain, given, back[at])
        return best

    def _swappable(self, full: int, empty: int) -> Iterator[TopicPartition]:
        return (one for one in self._movable(full, empty) if one not in self._unsized)

    def _may_differ_more(self, full: int, empty: int) -> bool:
        """Whether a replica less here and one more there keeps the numbers of replicas even."""
        counts = {one: len(names) for one, names in self._held.items()}
        counts[full] -= 1
        counts[empty] += 1
        return max(counts.values()) - min(counts.values()) <= self._count_allowed

    def _try_move_one(self, full: int, empty: int, wanted_bytes: int) -> bool:
        """Move the first replica of about this size, else that which comes closest."""
        best: TopicPartition | None = None
        best_off = 0
        for name in islice(self._movable(full, empty), CHOSEN_FROM_MAX):
            off = 4 * abs(self._sizes[name] - wanted_bytes) // max(1, wanted_bytes)
            if best is None or off < best_off:
                best, best_off = name, off
            if not best_off:
                break
        if best is None:
            return False
        self._replace(best, full, empty)
        return True

    def _movable(self, full: int, empty: int) -> Iterator[TopicPartition]:
        """What one broker holds and the other could hold instead."""
        for name in self._held[full]:
            replicas = self._now[name]
            if empty in replicas or name in self._fixed:
                continue
            others = {self._racks.get(one) for one in replicas if one != full}
            if self._racks[empty] in others and self._racks[full] not in others:
                continue  # two replicas would share a rack that do not now
            yield name

    def try_even_leaders(self) -> bool:
        """Put another broker first in one partition; False if that helps no more.

        Leaderships also go along chains: from the fullest broker to one with which it shares a
        partition, and from there to the emptiest.
        """
        by_load = sorted(self._led, key=lambda one: (len(self._led[one]), one))
        for full in reversed(by_load):
            path = self._try_find_path(full)
            if path is not None:
                for giver, taker in pairwise(path):
                    self._hand_over(giver, taker)
                return True
        return False

    def _try_find_path(self, full: int) -> list[int] | None:
        """From `full` to the nearest broker that leads two fewer, over shared partitions."""
        paths = {full: [full]}
        queue = [full]
        for giver in queue:
            takers = {one for one, names in self._shared[giver].items() if names}
            for taker in sorted(takers.intersection(self._led) - paths.keys()):
                paths[taker] = [*paths[giver], taker]
                if len(self._led[full]) - len(self._led[taker]) > 1:
                    return paths[taker]
                queue.append(taker)
        return None

    def _hand_over(self, giver: int, taker: int) -> None:
        name = next(iter(self._shared[giver][taker]))
        others = tuple(one for one in self._now[name] if one != taker)
        self._put(name, (taker, *others))


def _all_sizes(assignment: Assignment, sizes: Sizes) -> dict[TopicPartition, int]:
    """The size of each partition; the mean where it is not known."""
    known = [sizes[name] for name in assignment if name in sizes]
    mean = sum(known) // max(1, len(known))
    return {name: sizes.get(name, mean) for name in assignment}
