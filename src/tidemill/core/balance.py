"""Plans of where replicas and leaders should be: for the controller and for the commands. Pure.

An `Assignment` says which brokers hold each partition, the preferred leader first. A plan has the
partitions of it that should change, with their next replicas:

- `vacated` moves replicas off brokers that are to hold nothing, or that are gone;
- `evened` moves replicas from full brokers to empty ones, then leaderships;
- `resized` gives a topic more or fewer replicas.

New replicas go to a rack that has none of the partition, if there is one, then to the broker with
the fewest replicas. The same assignment always gives the same plan. `startable` chooses the part of
a plan that may run now: a broker copies few partitions at once, so that clients hardly notice. Who
needs only the beginning of a plan says how many moves it should have at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import final

from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MOVES_PER_BROKER_MAX

__all__ = ["Assignment", "away_from_preferred", "evened", "resized", "startable", "vacated"]

Assignment = Mapping[TopicPartition, Sequence[int]]
Plan = dict[TopicPartition, tuple[int, ...]]

NO_BOUND = 2**31
TOLERANCE = 0.1
"""Brokers may differ by this part of the mean before anything is moved."""


def vacated(
    assignment: Assignment,
    racks: Mapping[int, str],
    leave: Collection[int],
    *,
    moves_max: int = NO_BOUND,
) -> Plan:
    """Moves off the brokers in `leave`; `racks` has the brokers that may be given replicas.

    A replica for which there is no other broker stays.
    """
    places = _Places(assignment, {one: racks[one] for one in racks if one not in leave})
    steps = (
        places.try_move(name, gone)
        for name in sorted(assignment)
        for gone in leave
        if gone in places.of(name)
    )
    for _ in islice(filter(None, steps), moves_max):
        pass
    return places.changes()


def evened(assignment: Assignment, racks: Mapping[int, str], *, moves_max: int = NO_BOUND) -> Plan:
    """Moves that leave all brokers with about as many replicas, and as many leaderships."""
    places = _Places(assignment, racks)
    steps = chain(iter(places.try_even, False), iter(places.try_even_leaders, False))
    for _ in islice(steps, moves_max):
        pass
    return places.changes()


def resized(assignment: Assignment, racks: Mapping[int, str], factor: int, topic: str) -> Plan:
    """A topic with `factor` replicas, if there are so many brokers; the first ones stay."""
    places = _Places(assignment, racks)
    for name in sorted(assignment):
        if name.topic == topic:
            places.resize(name, factor)
    return places.changes()


def startable(
    plan: Mapping[TopicPartition, Sequence[int]],
    assignment: Assignment,
    moving: Iterable[tuple[Collection[int], Collection[int]]],
) -> Plan:
    """The moves of a plan that may begin now; `moving` has who comes and who goes in others."""
    arriving: Counter[int] = Counter()
    departing: Counter[int] = Counter()
    for adding, removing in moving:
        arriving.update(adding)
        departing.update(removing)
    begun: Plan = {}
    for name, target in plan.items():
        adding = [one for one in target if one not in assignment[name]]
        removing = [one for one in assignment[name] if one not in target]
        if any(arriving[one] >= MOVES_PER_BROKER_MAX for one in adding):
            continue
        if any(departing[one] >= MOVES_PER_BROKER_MAX for one in removing):
            continue
        arriving.update(adding)
        departing.update(removing)
        begun[name] = tuple(target)
    return begun


def away_from_preferred(
    assignment: Assignment, leaders: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Partitions to give back to their first replicas, where a broker lacks over a tenth of its."""
    preferred = Counter(replicas[0] for replicas in assignment.values())
    away = [name for name, replicas in assignment.items() if leaders[name] != replicas[0]]
    lacking = Counter(assignment[name][0] for name in away)
    return sorted(
        name
        for name in away
        if lacking[assignment[name][0]] > TOLERANCE * preferred[assignment[name][0]]
    )


@final
class _Places:
    """An assignment that is being changed, with the load of each broker."""

    def __init__(self, assignment: Assignment, racks: Mapping[int, str]) -> None:
        self._before = assignment
        self._racks = racks
        self._now: Plan = {name: tuple(replicas) for name, replicas in assignment.items()}
        self._held: dict[int, dict[TopicPartition, None]] = {one: {} for one in sorted(racks)}
        self._led: dict[int, dict[TopicPartition, None]] = {one: {} for one in sorted(racks)}
        self._shared: dict[int, dict[int, dict[TopicPartition, None]]] = {one: {} for one in racks}
        """Of the partitions that a broker leads, those that each other broker holds too."""
        for name in sorted(self._now):
            self._count(name)

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
        if replicas and replicas[0] in self._led:
            self._led[replicas[0]][name] = None
            shared = self._shared[replicas[0]]
            for one in replicas[1:]:
                shared.setdefault(one, {})[name] = None

    def _put(self, name: TopicPartition, replicas: tuple[int, ...]) -> None:
        before = self._now[name]
        for one in before:
            if one in self._held:
                del self._held[one][name]
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

    # --- balance ---------------------------------------------------------------------------------

    def try_even(self) -> bool:
        """Move one replica from a fuller broker to an emptier one; False if that helps no more."""
        by_load = sorted(self._held, key=lambda one: (len(self._held[one]), one))
        total = sum(map(len, self._held.values()))
        allowed = max(1, int(TOLERANCE * total / max(1, len(by_load))))
        for full in reversed(by_load):
            for empty in by_load:
                if len(self._held[full]) - len(self._held[empty]) <= allowed:
                    break
                if self._try_move_one(full, empty):
                    return True
        return False

    def _try_move_one(self, full: int, empty: int) -> bool:
        for name in self._held[full]:
            replicas = self._now[name]
            if empty in replicas:
                continue
            others = {self._racks.get(one) for one in replicas if one != full}
            if self._racks[empty] in others and self._racks[full] not in others:
                continue  # two replicas would share a rack that do not now
            self._replace(name, full, empty)
            return True
        return False

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
