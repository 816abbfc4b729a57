"""Plans of where replicas and leaders should be: for the controller and for the commands. Pure.

An `Assignment` says which brokers hold each partition, the preferred leader first. A plan has the
partitions of it that should change, with their next replicas:

- `vacated` moves replicas off brokers that are to hold nothing, or that are gone;
- `filled` gives brokers that have joined their share, and moves nothing between the others;
- `evened` moves replicas from full brokers to empty ones, swaps big ones for small ones where the
  bytes still differ, then moves leaderships;
- `resized` gives a topic more or fewer replicas.

`racks` has all brokers whose rack is known; those that are `usable` may be given replicas, or all
if that is not said. New replicas go to a rack that has none of the partition, if there is one, then
to the broker with the fewest replicas. `filled` and `evened` never lower the number of racks of a
partition, as far as the racks of its brokers are known.

The same assignment always gives the same plan. `startable` chooses the part of a plan that may run
now: a broker copies few partitions at once, so that clients hardly notice. Who needs only the
beginning of a plan says how many moves it should have at most. Partitions that are `fixed` count,
but stay.

`sizes` has the bytes of one replica of each partition, as far as they are known. A partition whose
size is not known counts as one of middle size, and is not swapped; without any sizes only numbers
of replicas count.

Plans are `Steps`: a cluster may have tens of thousands of partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, final

from tidemill.core.balancing.ranks import in_order, partition_of, rank_of
from tidemill.core.balancing.replica_places import TOLERANCE, Assignment, Plan, ReplicaPlaces, Sizes
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MOVES_PER_BROKER_MAX, PARTITIONS_PLANNED_PER_SLICE
from tidemill.core.loop.steps import Steps

__all__ = [
    "NO_SIZES",
    "Assignment",
    "ReplicaCounts",
    "Share",
    "Sizes",
    "away_from_preferred",
    "evened",
    "filled",
    "lacking",
    "resized",
    "startable",
    "vacated",
]

NO_BOUND = 2**31
NO_SIZES: Sizes = MappingProxyType({})


def vacated(
    assignment: Assignment,
    racks: Mapping[int, str],
    leave: Collection[int],
    *,
    usable: Collection[int] | None = None,
    fixed: AbstractSet[TopicPartition] = frozenset(),
    moves_max: int = NO_BOUND,
) -> Steps[Plan]:
    """Moves off the brokers in `leave`. A replica for which there is no other broker stays."""
    takers = (racks.keys() if usable is None else frozenset(usable)) - frozenset(leave)
    places = ReplicaPlaces(assignment, racks, usable=takers, sizes=NO_SIZES, fixed=fixed)
    yield from places.counted()
    moves = 0
    for seen, name in enumerate(places.names, 1):
        if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
            yield
        if name not in fixed and moves < moves_max:
            moves += sum(places.try_move(name, gone) for gone in leave if gone in places.of(name))
    return places.changes()


@final
@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """How many replicas, and leaderships, each broker has."""

    held: Counter[int] = field(default_factory=Counter)
    led: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, assignment: Assignment) -> ReplicaCounts:
        counts = cls()
        for replicas in assignment.values():
            counts.add(replicas)
        return counts

    def add(self, replicas: Sequence[int]) -> None:
        self.held.update(replicas)
        self.led[replicas[0]] += 1


@final
class Share(NamedTuple):
    """What each of some brokers has when they share evenly what they have together."""

    replicas: int
    leads: int

    @classmethod
    def of(cls, counts: ReplicaCounts, sharers: Collection[int]) -> Share:
        held = sum(counts.held[one] for one in sharers)
        led = sum(counts.led[one] for one in sharers)
        return cls(held // len(sharers), led // len(sharers))


def lacking(counts: ReplicaCounts, joined: Iterable[int], share: Share) -> list[int]:
    """Which of `joined` hold or lead less than their share."""
    return [
        one for one in joined if counts.held[one] < share.replicas or counts.led[one] < share.leads
    ]


def filled(
    assignment: Assignment,
    racks: Mapping[int, str],
    joined: Collection[int],
    share: Share,
    *,
    usable: Collection[int] | None = None,
    sizes: Sizes = NO_SIZES,
    fixed: AbstractSet[TopicPartition] = frozenset(),
    moves_max: int = NO_BOUND,
) -> Steps[Plan]:
    """Moves to the brokers in `joined` from those that have more than their share.

    They are of middle size, so that the share of bytes comes with that of replicas.
    """
    places = ReplicaPlaces(assignment, racks, usable=usable, sizes=sizes, fixed=fixed)
    yield from places.counted()
    fill = partial(places.try_fill, joined, share.replicas)
    moves = yield from _repeated(fill, moves_max)
    fill_leaders = partial(places.try_fill_leaders, joined, share.leads)
    yield from _repeated(fill_leaders, moves_max - moves)
    return places.changes()


def evened(
    assignment: Assignment,
    racks: Mapping[int, str],
    *,
    usable: Collection[int] | None = None,
    sizes: Sizes = NO_SIZES,
    fixed: AbstractSet[TopicPartition] = frozenset(),
    moves_max: int = NO_BOUND,
) -> Steps[Plan]:
    """Moves that leave all brokers with about as many replicas, bytes and leaderships."""
    places = ReplicaPlaces(assignment, racks, usable=usable, sizes=sizes, fixed=fixed)
    yield from places.counted()
    moves = yield from _repeated(partial(_try_even_either, places), moves_max)
    yield from _repeated(places.try_even_leaders, moves_max - moves)
    return places.changes()


def _try_even_either(places: ReplicaPlaces) -> Steps[bool]:
    return (yield from places.try_even()) or (yield from places.try_even_bytes())


def _repeated(step: Callable[[], Steps[bool]], moves_max: int) -> Steps[int]:
    """Make a step until it helps no more; how many were made."""
    moves = 0
    while moves < moves_max and (yield from step()):
        moves += 1
        yield
    return moves


def resized(
    assignment: Assignment,
    racks: Mapping[int, str],
    factor: int,
    topic: str,
    *,
    usable: Collection[int] | None = None,
) -> Steps[Plan]:
    """A topic with `factor` replicas, if there are so many brokers.

    Of more, those on usable brokers stay, the first ones of them.
    """
    places = ReplicaPlaces(assignment, racks, usable=usable, sizes=NO_SIZES)
    yield from places.counted()
    for seen, name in enumerate(places.names, 1):
        if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
            yield
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
) -> Steps[list[TopicPartition]]:
    """Partitions to give back to their first replicas, where a broker lacks over a tenth of its."""
    preferred, lacks = Counter[int](), Counter[int]()
    away: list[TopicPartition] = []
    for seen, (name, replicas) in enumerate(assignment.items(), 1):
        if seen % PARTITIONS_PLANNED_PER_SLICE == 0:
            yield
        preferred[replicas[0]] += 1
        if leaders[name] != replicas[0]:
            lacks[replicas[0]] += 1
            away.append(name)
    wrong = {one for one, count in lacks.items() if count > TOLERANCE * preferred[one]}
    chosen = (rank_of(name) for name in away if assignment[name][0] in wrong)
    ordered: list[TopicPartition] = []
    for rank in (yield from in_order(chosen)):
        if len(ordered) % PARTITIONS_PLANNED_PER_SLICE == 0:
            yield
        ordered.append(partition_of(rank))
    return ordered
