"""Committed offsets of a consumer group, read and written by a client that is no member.

Such a client (generation -1, no member id) may commit while the group has no members. Spark queries
and tools do this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final

from tidemill.client.admin.coordinator_client import CoordinatorClient
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import check
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

__all__ = ["GroupOffsets", "OffsetAndMetadata"]

_NO_GENERATION: Final = -1
_COMMIT_VERSION: Final = 9
_FETCH_VERSION: Final = 9
"""From 10 on both name topics by id."""


@final
class OffsetAndMetadata(NamedTuple):
    """The committed offset of one partition, and the text that was committed with it."""

    offset: int
    metadata: str


@final
class GroupOffsets:
    """The committed offsets of one group."""

    def __init__(self, cluster: ClusterClient, group: str) -> None:
        self._group = group
        self._coordinator = CoordinatorClient(cluster, group)

    async def fetch(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of some partitions (None: all), as far as there are any.

        A negative offset counts as none: clients commit it to begin at the start or the end.
        """
        topics = None if partitions is None else _asked_topics(partitions)
        asked = OffsetFetchRequestGroup(group_id=self._group, topics=topics)
        request = OffsetFetchRequest(groups=[asked], require_stable=True)

        async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
            response = await self._coordinator.ask(
                request, OffsetFetchResponse, version=_FETCH_VERSION
            )
            return self._committed(response)

        return await self._coordinator.retry(ask)

    async def commit(self, offsets: Mapping[TopicPartition, int], *, metadata: str = "") -> None:
        """Commit the next offset to read for some partitions; KafkaError if one is refused."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for (name, index), offset in sorted(offsets.items()):
            topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=_NO_GENERATION,
            topics=list(topics.values()),
        )

        async def ask() -> None:
            response = await self._coordinator.ask(
                request, OffsetCommitResponse, version=_COMMIT_VERSION
            )
            for topic in response.topics:
                for partition in topic.partitions:
                    where = TopicPartition(topic.name, partition.partition_index)
                    check(partition.error_code, f"group {self._group}, {where}")

        await self._coordinator.retry(ask)

    def _committed(self, response: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for group in response.groups:
            check(group.error_code, f"group {group.group_id}")
            for topic in group.topics:
                for entry in topic.partitions:
                    partition = TopicPartition(topic.name, entry.partition_index)
                    check(entry.error_code, f"group {group.group_id}, {partition}")
                    if entry.committed_offset >= 0:
                        found[partition] = OffsetAndMetadata(
                            entry.committed_offset, entry.metadata or ""
                        )
        return found


def _asked_topics(partitions: Iterable[TopicPartition]) -> list[OffsetFetchRequestTopics]:
    topics: dict[str, OffsetFetchRequestTopics] = {}
    for name, index in sorted(partitions):
        topic = topics.setdefault(name, OffsetFetchRequestTopics(name=name))
        topic.partition_indexes.append(index)
    return list(topics.values())
