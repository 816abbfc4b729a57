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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import NamedTuple, final

from tidemill.core.balancing.replica_places import TOLERANCE, Assignment, Plan, ReplicaPlaces, Sizes
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MOVES_PER_BROKER_MAX

__all__ = [
    "NO_SIZES",
    "Assignment",
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
    moves_max: int = NO_BOUND,
) -> Plan:
    """Moves off the brokers in `leave`. A replica for which there is no other broker stays."""
    takers = (racks.keys() if usable is None else frozenset(usable)) - frozenset(leave)
    places = ReplicaPlaces(assignment, racks, usable=takers)
    steps = (
        places.try_move(name, gone)
        for name in sorted(assignment)
        for gone in leave
        if gone in places.of(name)
    )
    for _ in islice(filter(None, steps), moves_max):
        pass
    return places.changes()


@final
class Share(NamedTuple):
    """What each of some brokers has when they share evenly what they have together."""

    replicas: int
    leads: int

    @classmethod
    def of(cls, assignment: Assignment, sharers: Collection[int]) -> Share:
        held = sum(one in sharers for replicas in assignment.values() for one in replicas)
        led = sum(replicas[0] in sharers for replicas in assignment.values())
        return cls(held // len(sharers), led // len(sharers))


def lacking(assignment: Assignment, joined: Iterable[int], share: Share) -> list[int]:
    """Which of `joined` hold or lead less than their share."""
    held = Counter(one for replicas in assignment.values() for one in replicas)
    led = Counter(replicas[0] for replicas in assignment.values())
    return [one for one in joined if held[one] < share.replicas or led[one] < share.leads]


def filled(
    assignment: Assignment,
    racks: Mapping[int, str],
    joined: Collection[int],
    share: Share,
    *,
    usable: Collection[int] | None = None,
    sizes: Sizes = NO_SIZES,
    fixed: Collection[TopicPartition] = (),
    moves_max: int = NO_BOUND,
) -> Plan:
    """Moves to the brokers in `joined` from those that have more than their share.

    They are of middle size, so that the share of bytes comes with that of replicas.
    """
    places = ReplicaPlaces(assignment, racks, sizes, fixed, usable=usable)
    steps = chain(
        iter(partial(places.try_fill, joined, share.replicas), False),
        iter(partial(places.try_fill_leaders, joined, share.leads), False),
    )
    for _ in islice(steps, moves_max):
        pass
    return places.changes()


def evened(
    assignment: Assignment,
    racks: Mapping[int, str],
    *,
    usable: Collection[int] | None = None,
    sizes: Sizes = NO_SIZES,
    fixed: Collection[TopicPartition] = (),
    moves_max: int = NO_BOUND,
) -> Plan:
    """Moves that leave all brokers with about as many replicas, bytes and leaderships."""
    places = ReplicaPlaces(assignment, racks, sizes, fixed, usable=usable)
    steps = chain(
        iter(lambda: places.try_even() or places.try_even_bytes(), False),
        iter(places.try_even_leaders, False),
    )
    for _ in islice(steps, moves_max):
        pass
    return places.changes()


def resized(
    assignment: Assignment,
    racks: Mapping[int, str],
    factor: int,
    topic: str,
    *,
    usable: Collection[int] | None = None,
) -> Plan:
    """A topic with `factor` replicas, if there are so many brokers; the first ones stay."""
    places = ReplicaPlaces(assignment, racks, usable=usable)
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
