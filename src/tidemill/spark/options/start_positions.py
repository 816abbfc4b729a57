"""Where a query begins or ends, as its options say; `source.positions` turns it into offsets.

Spark's Kafka source has `earliest`, `latest`, offsets and times for each partition (-2 and -1 stand
for earliest and latest), and one time for all. Ours adds `group`, the committed offsets of a
consumer group; `-10m`, a time before now; and `-100`, a number of offsets before the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import final

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import parse_partition_numbers
from tidemill.spark.options.option_values import parse_duration_ms

__all__ = [
    "EARLIEST",
    "LATEST",
    "Place",
    "PlaceKind",
    "Places",
    "parse_offsets",
    "parse_timestamp",
    "parse_timestamps",
]

_EARLIEST_NUMBER = -2
_LATEST_NUMBER = -1


class PlaceKind(Enum):
    """What the number of a place means."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"
    """The first record of this time (ms since the epoch) or later."""
    AGO = "ago"
    """The first record from this many milliseconds before now, or later."""
    BEFORE_END = "before the end"
    """This many offsets before the end, but not before the log begins."""
    GROUP = "group"
    """The committed offset of the consumer group; earliest if it has committed none."""


@final
@dataclass(frozen=True, slots=True)
class Place:
    """One position in a partition, not resolved yet."""

    kind: PlaceKind
    number: int = 0


EARLIEST = Place(PlaceKind.EARLIEST)
LATEST = Place(PlaceKind.LATEST)


@final
@dataclass(frozen=True, slots=True)
class Places:
    """A place for every partition: one for all, or one for each named partition."""

    for_all: Place | None = None
    by_partition: dict[TopicPartition, Place] = field(default_factory=dict)
    option: str = ""
    """The option that it comes from, for messages."""
    late_is_latest: bool = True
    """Whether a time after the last record means the end, rather than a mistake."""

    def of(self, partition: TopicPartition) -> Place:
        """UserError if the option names partitions but not this one."""
        place = self.by_partition.get(partition, self.for_all)
        if place is None:
            raise UserError(f"{self.option} does not name {partition}: name every partition")
        return place


def parse_offsets(text: str, option: str, *, ending: bool = False) -> Places:
    """`earliest`, `latest`, `group`, `-10m`, `-100`, or JSON with an offset for each partition."""
    word = text.strip()
    if word.startswith("{"):
        return Places(None, _places(parse_partition_numbers(word, option)), option)
    simple = {"latest": LATEST}
    if not ending:
        simple |= {"earliest": EARLIEST, "group": Place(PlaceKind.GROUP)}
    if word.lower() in simple:
        return Places(simple[word.lower()], option=option)
    if word.startswith("-"):
        return Places(_relative(word, option), option=option)
    allowed = ", ".join(sorted(simple))
    raise UserError(
        f"{option}={text}: expected {allowed}, a time ago like -10m, offsets before the end like "
        '-100, or JSON like {"topic": {"0": 23}}'
    )


def parse_timestamp(text: str, option: str, *, late_is_latest: bool) -> Places:
    """Milliseconds since the epoch, or a time ago like `-10m`."""
    word = text.strip()
    if word.startswith("-"):
        place = Place(PlaceKind.AGO, parse_duration_ms(word[1:], option))
    elif word.isdecimal():
        place = Place(PlaceKind.TIME, int(word))
    else:
        raise UserError(f"{option}={text}: expected milliseconds since 1970, or an age like -10m")
    return Places(place, option=option, late_is_latest=late_is_latest)


def parse_timestamps(text: str, option: str, *, late_is_latest: bool) -> Places:
    """JSON with a time in milliseconds for each partition."""
    places = {
        partition: Place(PlaceKind.TIME, number)
        for partition, number in parse_partition_numbers(text, option).items()
    }
    return Places(None, places, option, late_is_latest)


def _relative(word: str, option: str) -> Place:
    if word[1:].isdecimal():
        return Place(PlaceKind.BEFORE_END, int(word[1:]))
    return Place(PlaceKind.AGO, parse_duration_ms(word[1:], option))


def _places(numbers: Mapping[TopicPartition, int]) -> dict[TopicPartition, Place]:
    return {partition: _place(number) for partition, number in numbers.items()}


def _place(number: int) -> Place:
    if number == _EARLIEST_NUMBER:
        return EARLIEST
    if number == _LATEST_NUMBER:
        return LATEST
    if number < 0:
        raise UserError(f"{number} is no offset: -2 means earliest, -1 latest")
    return Place(PlaceKind.OFFSET, number)
