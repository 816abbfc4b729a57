"""Resolves the options of a query against the cluster: its partitions and offsets now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from tidemill.client.admin.group_offsets import GroupOffsets
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.offset_lookup import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListedOffset,
    list_offsets,
)
from tidemill.core.errors import ErrorCode, KafkaError, UserError
from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import PRIVATE_KEY, PartitionOffsets
from tidemill.spark.options.source_options import Subscription
from tidemill.spark.options.start_positions import Place, PlaceKind, Places

__all__ = [
    "SubscribedPartitions",
    "earliest_offsets",
    "latest_offsets",
    "offsets_at",
    "resolve_places",
    "resolve_subscription",
]

_MISSING = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


@final
@dataclass(frozen=True, slots=True)
class SubscribedPartitions:
    """The partitions that a subscription covers now."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: dict[str, str]
    missing: tuple[str, ...] = ()
    """Topics and partitions that the subscription names and that do not exist."""

    def check_complete(self) -> None:
        if self.missing:
            raise UserError(f"there is no topic {', '.join(self.missing)}")


async def resolve_subscription(
    cluster: ClusterClient, subscription: Subscription
) -> SubscribedPartitions:
    """The partitions that exist now."""
    if subscription.pattern is not None:
        await cluster.refresh(None)
        wanted = re.compile(subscription.pattern)
        names = sorted(
            name
            for name, info in cluster.metadata.topics.items()
            if wanted.fullmatch(name) and not info.internal and name != PRIVATE_KEY
        )
        return _of_topics(cluster, names)
    names = sorted({*subscription.topics, *(p.topic for p in subscription.partitions)})
    await cluster.refresh(names)
    found = _of_topics(cluster, names)
    if not subscription.partitions:
        return found
    existing = [p for p in subscription.partitions if p in set(found.partitions)]
    gone = {str(p) for p in subscription.partitions} - {str(p) for p in existing}
    return SubscribedPartitions(tuple(existing), found.topic_ids, (*found.missing, *sorted(gone)))


def _of_topics(cluster: ClusterClient, names: Iterable[str]) -> SubscribedPartitions:
    partitions: list[TopicPartition] = []
    topic_ids: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        try:
            info = cluster.metadata.topic(name)
        except KafkaError as refusal:
            if refusal.code not in _MISSING:
                raise
            missing.append(name)
            continue
        topic_ids[name] = str(info.topic_id)
        partitions += [TopicPartition(name, index) for index in info.partitions]
    return SubscribedPartitions(tuple(sorted(partitions)), topic_ids, tuple(missing))


async def earliest_offsets(
    cluster: ClusterClient, partitions: Iterable[TopicPartition]
) -> PartitionOffsets:
    """The first offset of each log."""
    asked = dict.fromkeys(partitions, EARLIEST_TIMESTAMP)
    return {p: listed.offset for p, listed in (await _list(cluster, asked, 0)).items()}


async def latest_offsets(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], isolation_level: int
) -> PartitionOffsets:
    """The end of each log for a reader of that isolation level."""
    asked = dict.fromkeys(partitions, LATEST_TIMESTAMP)
    found = await _list(cluster, asked, isolation_level)
    return {partition: listed.offset for partition, listed in found.items()}


async def offsets_at(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], time_ms: int, isolation_level: int
) -> PartitionOffsets:
    """The first offset of each partition at or after a time; -1 if there is none."""
    found = await _list(cluster, dict.fromkeys(partitions, time_ms), isolation_level)
    return {partition: listed.offset for partition, listed in found.items()}


async def resolve_places(
    cluster: ClusterClient,
    partitions: Iterable[TopicPartition],
    places: Places,
    *,
    now_ms: int,
    group: str | None,
    isolation_level: int,
) -> PartitionOffsets:
    """An offset for every partition. Relative places stay within the log."""
    wanted = {partition: places.of(partition) for partition in partitions}
    unknown = places.by_partition.keys() - wanted.keys()
    if unknown:
        raise UserError(f"{places.option} names {min(unknown)}, which the query does not read")
    result: PartitionOffsets = {
        p: place.number for p, place in wanted.items() if place.kind is PlaceKind.OFFSET
    }
    result |= await _by_time(cluster, wanted, places, now_ms, isolation_level)
    ends = _of_kind(wanted, PlaceKind.LATEST, PlaceKind.BEFORE_END)
    starts = _of_kind(wanted, PlaceKind.EARLIEST, PlaceKind.BEFORE_END, PlaceKind.GROUP)
    first = await earliest_offsets(cluster, starts) if starts else {}
    last = await latest_offsets(cluster, ends, isolation_level) if ends else {}
    for partition in starts | ends:
        result[partition] = _edge(wanted[partition], partition, first, last)
    return result | await _committed(cluster, _of_kind(wanted, PlaceKind.GROUP), group)


def _of_kind(wanted: Mapping[TopicPartition, Place], *kinds: PlaceKind) -> set[TopicPartition]:
    return {partition for partition, place in wanted.items() if place.kind in kinds}


def _edge(
    place: Place, partition: TopicPartition, first: PartitionOffsets, last: PartitionOffsets
) -> int:
    if place.kind is PlaceKind.BEFORE_END:
        return max(first[partition], last[partition] - place.number)
    return last[partition] if place.kind is PlaceKind.LATEST else first[partition]


async def _by_time(
    cluster: ClusterClient,
    wanted: Mapping[TopicPartition, Place],
    places: Places,
    now_ms: int,
    isolation_level: int,
) -> PartitionOffsets:
    times = {
        partition: place.number if place.kind is PlaceKind.TIME else max(0, now_ms - place.number)
        for partition, place in wanted.items()
        if place.kind in {PlaceKind.TIME, PlaceKind.AGO}
    }
    if not times:
        return {}
    listed = await _list(cluster, times, isolation_level)
    found = {partition: answer.offset for partition, answer in listed.items()}
    late = sorted(partition for partition, offset in found.items() if offset < 0)
    if late and not places.late_is_latest:
        raise UserError(
            f"{places.option}: {late[0]} has no record of that time or later; "
            "startingOffsetsByTimestampStrategy=latest would begin at its end"
        )
    return found | (await latest_offsets(cluster, late, isolation_level) if late else {})


async def _committed(
    cluster: ClusterClient, partitions: set[TopicPartition], group: str | None
) -> PartitionOffsets:
    if not partitions:
        return {}
    if group is None:
        raise UserError("startingOffsets=group needs the group's name in kafka.group.id")
    found = await GroupOffsets(cluster, group).fetch(partitions)
    return {partition: committed.offset for partition, committed in found.items()}


async def _list(
    cluster: ClusterClient, asked: Mapping[TopicPartition, int], isolation_level: int
) -> dict[TopicPartition, ListedOffset]:
    return await list_offsets(cluster, asked, isolation_level=isolation_level) if asked else {}
