"""Where `group reset` would move a group: computed first, then shown or committed.

A new offset is always inside the partition: between its log start offset and its high watermark.
Otherwise the group would fall back to its clients' `auto.offset.reset`, which the user did not ask
for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tidemill.client.admin.group_offsets import GroupOffsets, OffsetAndMetadata
from tidemill.client.consuming.consumer import AtOffset, AtTime
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition

__all__ = [
    "PlannedMove",
    "ResetTarget",
    "SavedOffsets",
    "ShiftBy",
    "TopicChoice",
    "parse_topic_choice",
    "plan_reset",
    "read_saved_offsets",
]

_OFFSETS_FILE_BYTES_MAX = 64 * 1024 * 1024
_OFFSET_MAX = 2**63 - 1


@final
@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Forward (or back) by a number of records from the committed offset."""

    records: int


@final
@dataclass(frozen=True, slots=True)
class SavedOffsets:
    """The offsets of a file, for the partitions that it names."""

    offsets: Mapping[TopicPartition, int]


ResetTarget = AtOffset | AtTime | ShiftBy | SavedOffsets


@final
@dataclass(frozen=True, slots=True)
class TopicChoice:
    """A topic whose offsets move; None means all its partitions."""

    topic: str
    partitions: tuple[int, ...] | None = None


@final
@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The committed offset of one partition before (None: never committed) and after."""

    partition: TopicPartition
    before: int | None
    after: int


def parse_topic_choice(text: str) -> TopicChoice:
    """`orders`, or `orders:0,3` for some of its partitions."""
    topic, colon, listed = text.partition(":")
    if not colon:
        return TopicChoice(topic)
    indexes = listed.split(",")
    if not all(index.isascii() and index.isdigit() and len(index) <= 9 for index in indexes):
        raise UserError(f"--topic {text}: expected TOPIC or TOPIC:0,1 with partition numbers")
    return TopicChoice(topic, tuple(sorted({int(index) for index in indexes})))


# --- files ---------------------------------------------------------------------------------------


def read_saved_offsets(path: Path) -> SavedOffsets:
    """The offsets that `group describe --json` saved; partitions without one are skipped."""
    if path.stat().st_size > _OFFSETS_FILE_BYTES_MAX:
        raise UserError(f"--from-file {path}: too large to be saved offsets")
    try:
        facts = json.loads(path.read_bytes())
        saved = dict(_saved_offset(entry) for entry in facts["partitions"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(
            f"--from-file {path}: expected what `tidemill group describe GROUP --json` prints, "
            'at least {"partitions": [{"topic": ..., "partition": ..., "committed_offset": ...}]}'
        ) from None
    return SavedOffsets({p: offset for p, offset in saved.items() if offset is not None})


def _saved_offset(entry: Mapping[str, Any]) -> tuple[TopicPartition, int | None]:
    topic, index, offset = entry["topic"], entry["partition"], entry["committed_offset"]
    numbers = [index] if offset is None else [index, offset]
    if not isinstance(topic, str) or any(type(number) is not int for number in numbers):
        raise TypeError
    if not all(0 <= number <= _OFFSET_MAX for number in numbers):
        raise ValueError
    return TopicPartition(topic, index), offset


# --- the plan ------------------------------------------------------------------------------------


async def plan_reset(
    cluster: ClusterClient, group: str, target: ResetTarget, topics: Iterable[TopicChoice] | None
) -> list[PlannedMove]:
    """The move of every chosen partition; None chooses the partitions with a committed offset."""
    committed = await GroupOffsets(cluster, group).fetch(None)
    chosen = await _chosen(cluster, topics, target, committed)
    wanted = await _wanted(cluster, target, chosen, committed)
    starts = await _places(cluster, chosen, EARLIEST_TIMESTAMP)
    ends = await _places(cluster, chosen, LATEST_TIMESTAMP)
    return [
        PlannedMove(
            partition,
            committed[partition].offset if partition in committed else None,
            max(starts[partition], min(wanted.get(partition, _OFFSET_MAX), ends[partition])),
        )
        for partition in chosen
    ]


async def _chosen(
    cluster: ClusterClient,
    topics: Iterable[TopicChoice] | None,
    target: ResetTarget,
    committed: Iterable[TopicPartition],
) -> list[TopicPartition]:
    listed = target.offsets if isinstance(target, SavedOffsets) else None
    if topics is None:
        return sorted(committed if listed is None else listed)
    chosen: set[TopicPartition] = set()
    for choice in topics:
        info = await cluster.topic(choice.topic)
        indexes = info.partitions if choice.partitions is None else choice.partitions
        chosen |= {TopicPartition(choice.topic, index) for index in indexes}
    return sorted(chosen if listed is None else chosen & set(listed))


async def _wanted(
    cluster: ClusterClient,
    target: ResetTarget,
    chosen: list[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, int]:
    """The wanted offsets, before they are clamped; none where the time is after every record."""
    match target:
        case AtOffset(offset):
            return dict.fromkeys(chosen, offset)
        case ShiftBy(records):
            return {p: _shiftable(p, committed) + records for p in chosen}
        case SavedOffsets(offsets):
            return {p: offsets[p] for p in chosen}
        case AtTime(timestamp_ms):
            found = await _places(cluster, chosen, timestamp_ms)
            return {p: offset for p, offset in found.items() if offset >= 0}


def _shiftable(
    partition: TopicPartition, committed: Mapping[TopicPartition, OffsetAndMetadata]
) -> int:
    if partition not in committed:
        raise UserError(
            f"--shift-by: nothing is committed for {partition}; "
            "name the partitions to move, as in --topic orders:0,1"
        )
    return committed[partition].offset


async def _places(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    listed = await list_offsets(cluster, dict.fromkeys(partitions, timestamp_ms))
    return {partition: found.offset for partition, found in listed.items()}
