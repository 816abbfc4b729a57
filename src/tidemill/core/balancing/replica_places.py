"""An assignment of replicas to brokers while it is changed, step by step. Pure.

Each `try_` makes one step of a plan of `balance.py`, and is False when no step helps any more.
Every step brings what it evens closer together, so a plan ends: one replica goes from a broker to
one with fewer; a swap lessens the difference of two brokers in bytes, and leaves the numbers of
replicas as they were, or even.

All that looks at many partitions is `Steps`: it yields after a few hundred of them. The assignment
and the sizes must stay as they are until the plan is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, pairwise
from typing import final

from tidemill.core.balancing.ranks import (
    Rank,
    Swap,
    best_swap,
    in_order,
    partition_of,
    rank_of,
    set_ranked,
)
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import PARTITIONS_PLANNED_PER_SLICE
from tidemill.core.loop.steps import Steps

__all__ = ["TOLERANCE", "Assignment", "Plan", "ReplicaPlaces", "Sizes"]

Assignment = Mapping[TopicPartition, Sequence[int]]
Plan = dict[TopicPartition, tuple[int, ...]]
Sizes = Mapping[TopicPartition, int]

TOLERANCE = 0.1
"""Brokers may differ by this part of the mean before anything is moved."""
CHOSEN_FROM_MAX = 500
"""Replicas that are compared by size for one move."""


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
        *,
        usable: Collection[int] | None = None,
        sizes: Sizes,
        fixed: AbstractSet[TopicPartition] = frozenset(),
    ) -> None:
        """Nothing is counted yet; see `counted`."""
        usable = sorted(racks if usable is None else usable)
        self._before = assignment
        self._racks = racks
        self._fixed = fixed
        self._sizes = sizes
        self._middle_bytes = 0
        """What a replica of unknown size counts for: the mean of the others."""
        self._mean_bytes = 0
        self.names: list[TopicPartition] = []
        """In this order: who gives away gives some of every topic."""
        self._moved: Plan = {}
        """Where replicas are by now, of partitions that were changed."""
        self._bytes: dict[int, int] = dict.fromkeys(usable, 0)
        self._held: dict[int, dict[TopicPartition, None]] = {one: {} for one in usable}
        self._led: dict[int, dict[TopicPartition, None]] = {one: {} for one in usable}
        self._shared: dict[int, dict[int, dict[TopicPartition, None]]] = {one: {} for one in usable}
        """Of the partitions that a broker leads, those that each other broker holds too."""
        self._ranked: dict[int, dict[int, list[Rank]]] = {one: {} for one in usable}
        """What a broker could swap with another one, in order; made when it is first needed."""
        self._barred: dict[int, set[int]] = {one: set() for one in usable}
        """Brokers to which a broker can move nothing: found once, by a look at all that it has."""

    def counted(self) -> Steps[ReplicaPlaces]:
        """The same, ready for a plan."""
        yield from self._measure()
        ranks = yield from in_order(map(rank_of, self._before))
        for seen, rank in enumerate(ranks, 1):
            if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
                yield
            name = partition_of(rank)
            self.names.append(name)
            self._count(name)
        return self

    def _measure(self) -> Steps[None]:
        known_bytes = known = 0
        for seen, name in enumerate(self._before if self._sizes else (), 1):
            if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
                yield
            if name in self._sizes:
                known_bytes += self._sizes[name]
                known += 1
        self._middle_bytes = known_bytes // max(1, known)
        unknown_bytes = self._middle_bytes * (len(self._before) - known)
        self._mean_bytes = (known_bytes + unknown_bytes) // max(1, len(self._before))

    def of(self, name: TopicPartition) -> tuple[int, ...]:
        return self._moved[name] if name in self._moved else tuple(self._before[name])

    def changes(self) -> Plan:
        return {
            name: replicas
            for name, replicas in sorted(self._moved.items())
            if replicas != tuple(self._before[name])
        }

    def _size(self, name: TopicPartition) -> int:
        return self._sizes.get(name, self._middle_bytes)

    def _count(self, name: TopicPartition) -> None:
        replicas = self.of(name)
        for one in replicas:
            if one in self._held:
                self._held[one][name] = None
                self._bytes[one] += self._size(name)
        if replicas and replicas[0] in self._led:
            self._led[replicas[0]][name] = None
            if name not in self._fixed:
                shared = self._shared[replicas[0]]
                for one in replicas[1:]:
                    shared.setdefault(one, {})[name] = None

    def _put(self, name: TopicPartition, replicas: tuple[int, ...]) -> None:
        before = self.of(name)
        for one in before:
            if one in self._held:
                del self._held[one][name]
                self._bytes[one] -= self._size(name)
        if before and before[0] in self._led:
            del self._led[before[0]][name]
            for one in before[1:]:
                del self._shared[before[0]][one][name]
        self._moved[name] = replicas
        self._count(name)
        for one in sorted(self._ranked.keys() & {*before, *replicas}):
            for taker, ranks in self._ranked[one].items():
                is_in = self._may_swap(name, one, taker)
                set_ranked(ranks, rank_of(name, self._size(name)), is_in=is_in)
        for one in replicas:
            barred = self._barred.get(one, set())
            barred -= {taker for taker in barred if self._may_move(name, one, taker)}

    # --- single moves ----------------------------------------------------------------------------

    def try_move(self, name: TopicPartition, gone: int) -> bool:
        """Move the replica on `gone` to the best other broker, if there is one."""
        others = tuple(one for one in self.of(name) if one != gone)
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
        self._put(name, tuple(better if one == gone else one for one in self.of(name)))

    def resize(self, name: TopicPartition, factor: int) -> None:
        replicas = self.of(name)
        while len(replicas) < factor:
            more = self._best(replicas)
            if more is None:
                break
            replicas += (more,)
        # The last ones go, those on brokers that may be given nothing first: they may be away.
        stay = sorted(replicas, key=lambda one: one not in self._held)[:factor]
        self._put(name, tuple(one for one in replicas if one in stay))

    # --- shares ----------------------------------------------------------------------------------

    def try_fill(self, joined: Collection[int], share: int) -> Steps[bool]:
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
                if (yield from self._try_move_one(full, empty, max(0, wanted))):
                    return True
        return False

    def try_fill_leaders(self, joined: Collection[int], share: int) -> Steps[bool]:
        """Put a broker that leads less than its share first in one partition that it holds."""
        yield
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

    def try_even(self) -> Steps[bool]:
        """Move one replica from a fuller broker to an emptier one; False if that helps no more."""
        by_load = sorted(self._held, key=lambda one: (len(self._held[one]), one))
        allowed = self._count_allowed
        for full in reversed(by_load):
            for empty in by_load:
                if len(self._held[full]) - len(self._held[empty]) <= allowed:
                    break
                wanted = max(0, self._bytes[full] - self._bytes[empty]) // 2
                if (yield from self._try_move_one(full, empty, wanted)):
                    return True
        return False

    @property
    def _count_allowed(self) -> int:
        """By how many replicas two brokers may differ."""
        total = sum(map(len, self._held.values()))
        return max(1, int(TOLERANCE * total / max(1, len(self._held))))

    def try_even_bytes(self) -> Steps[bool]:
        """Swap a big replica for a small one, with the fullest broker or the emptiest."""
        by_bytes = sorted(self._bytes, key=lambda one: (self._bytes[one], one))
        allowed = TOLERANCE * sum(self._bytes.values()) / max(1, len(by_bytes))
        pairs = chain(
            ((by_bytes[-1], one) for one in by_bytes[:-1]),
            ((one, by_bytes[0]) for one in reversed(by_bytes[1:-1])),
        )
        for full, empty in pairs:
            if self._bytes[full] - self._bytes[empty] > allowed:
                swap = yield from self._try_find_swap(full, empty)
                if swap is not None:
                    self._replace(swap.given, full, empty)
                    if swap.taken is not None:
                        self._replace(swap.taken, empty, full)
                    return True
        return False

    def _try_find_swap(self, full: int, empty: int) -> Steps[Swap | None]:
        """The swap after which the two differ least."""
        yield
        given = yield from self._swappable(full, empty)
        taken = yield from self._swappable(empty, full)
        gap = self._bytes[full] - self._bytes[empty]
        alone = self._may_differ_more(full, empty)
        return (yield from best_swap(given, taken, gap, may_take_nothing=alone))

    def _swappable(self, giver: int, taker: int) -> Steps[list[Rank]]:
        """What one broker could swap with the other, in order; `_put` keeps it so."""
        if taker not in self._ranked[giver]:
            found: list[Rank] = []
            for seen, name in enumerate(self._held[giver], 1):
                if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
                    yield
                if self._may_swap(name, giver, taker):
                    found.append(rank_of(name, self._size(name)))
            self._ranked[giver][taker] = yield from in_order(found)
        return self._ranked[giver][taker]

    def _may_differ_more(self, full: int, empty: int) -> bool:
        """Whether a replica less here and one more there keeps the numbers of replicas even."""
        counts = {one: len(names) for one, names in self._held.items()}
        counts[full] -= 1
        counts[empty] += 1
        return max(counts.values()) - min(counts.values()) <= self._count_allowed

    def _try_move_one(self, full: int, empty: int, wanted_bytes: int) -> Steps[bool]:
        """Move the first replica of about this size, else that which comes closest."""
        if empty in self._barred[full]:
            return False
        yield
        best: TopicPartition | None = None
        best_off = compared = 0
        for seen, name in enumerate(self._held[full], 1):
            if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
                yield
            if not self._may_move(name, full, empty):
                continue
            off = 4 * abs(self._size(name) - wanted_bytes) // max(1, wanted_bytes)
            if best is None or off < best_off:
                best, best_off = name, off
            compared += 1
            if not best_off or compared == CHOSEN_FROM_MAX:
                break
        if best is None:
            self._barred[full].add(empty)
            return False
        self._replace(best, full, empty)
        return True

    def _may_move(self, name: TopicPartition, giver: int, taker: int) -> bool:
        """Whether `taker` could hold a replica instead, and no rack is lost by that."""
        replicas = self.of(name)
        if giver not in replicas or taker in replicas or name in self._fixed:
            return False
        others = [self._racks.get(one) for one in replicas if one != giver]
        return self._racks[taker] not in others or self._racks[giver] in others

    def _may_swap(self, name: TopicPartition, giver: int, taker: int) -> bool:
        """A guess of its size would be no reason to copy it."""
        return name in self._sizes and self._may_move(name, giver, taker)

    def try_even_leaders(self) -> Steps[bool]:
        """Put another broker first in one partition; False if that helps no more.

        Leaderships also go along chains: from the fullest broker to one with which it shares a
        partition, and from there to the emptiest.
        """
        by_load = sorted(self._led, key=lambda one: (len(self._led[one]), one))
        for full in reversed(by_load):
            yield
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
        others = tuple(one for one in self.of(name) if one != taker)
        self._put(name, (taker, *others))
