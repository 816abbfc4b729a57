"""Filters of a query as bounds on what is fetched: topics, partitions, offsets and a lowest time.

The bounds only reduce what is fetched; Spark filters every row again. A time is a lower bound only,
because timestamps in a log need not rise: all records before the first one of that time or later
are older, while the records after it can have any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import list_offsets
from tidemill.core.ids import TopicPartition
from tidemill.spark.source.positions import latest_offsets

__all__ = ["ReadBounds"]

_OFFSET_MAX = (1 << 63) - 1


@final
@dataclass(slots=True)
class ReadBounds:
    """The conditions on a row that allow fetching less."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_low: int = 0
    offset_high: int = _OFFSET_MAX
    """Exclusive."""
    time_low_ms: int | None = None

    @classmethod
    def from_filters(cls, filters: Iterable[Filter]) -> ReadBounds:
        """The conjunction of the filters; filters of other kinds are left to Spark."""
        bounds = cls()
        for wanted in filters:
            bounds._add(wanted)
        return bounds

    @property
    def is_active(self) -> bool:
        return self != ReadBounds()

    def may_hold(self, partition: TopicPartition) -> bool:
        """Whether the partition can have a matching row."""
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )

    def clip(self, start: int, stop: int) -> tuple[int, int]:
        """The part of a range that can have a matching row."""
        low = max(start, self.offset_low)
        return low, max(low, min(stop, self.offset_high))

    async def later_starts(
        self, cluster: ClusterClient, starts: Mapping[TopicPartition, int], isolation_level: int
    ) -> dict[TopicPartition, int]:
        """Starts that skip records older than the lowest time."""
        if self.time_low_ms is None or not starts:
            return dict(starts)
        asked = dict.fromkeys(starts, self.time_low_ms)
        found = await list_offsets(cluster, asked, isolation_level=isolation_level)
        ends = await latest_offsets(cluster, starts, isolation_level)
        return {
            p: max(start, found[p].offset if found[p].offset >= 0 else ends[p])
            for p, start in starts.items()
        }

    def _add(self, wanted: Filter) -> None:
        if not isinstance(
            wanted, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
        ):
            return
        column = ".".join(wanted.attribute)
        given = wanted.value if isinstance(wanted, In) else (wanted.value,)
        values = [value for value in given if value is not None]
        if not values:
            return  # nothing equals NULL: no row passes Spark's own filter
        if column == "topic" and isinstance(wanted, EqualTo | In):
            topics = frozenset(str(value) for value in values)
            self.topics = topics if self.topics is None else self.topics & topics
        elif column == "partition" and isinstance(wanted, EqualTo | In):
            indexes = frozenset(int(value) for value in values)
            self.partitions = indexes if self.partitions is None else self.partitions & indexes
        elif column == "offset":
            self._add_offset(wanted, [int(value) for value in values])
        elif column == "timestamp" and isinstance(
            wanted, EqualTo | GreaterThan | GreaterThanOrEqual
        ):
            self._add_time(wanted.value)

    def _add_offset(self, wanted: Filter, values: list[int]) -> None:
        """`values` are those that the filter compares with, without NULL."""
        low, high = 0, _OFFSET_MAX
        match wanted:
            case EqualTo() | In():
                low, high = min(values), max(values) + 1
            case GreaterThan():
                low = values[0] + 1
            case GreaterThanOrEqual():
                low = values[0]
            case LessThan():
                high = values[0]
            case LessThanOrEqual():
                high = values[0] + 1
        self.offset_low = max(self.offset_low, low)
        self.offset_high = min(self.offset_high, high)

    def _add_time(self, value: object) -> None:
        if isinstance(value, datetime) and value.tzinfo is not None:
            time_ms = int(value.timestamp() * 1000) - 1  # a record's time has whole milliseconds
            self.time_low_ms = max(time_ms, self.time_low_ms or 0, 0)
