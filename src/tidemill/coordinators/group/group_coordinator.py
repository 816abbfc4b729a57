"""The group coordinator of one broker: finds a group's partition and runs operations on its shard.

A group belongs to the partition of `__consumer_offsets` that its name hashes to (F54). The broker
that leads this partition coordinates the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, TypeVar, final

from tidemill.coordinators.group.offsets.pending_offsets import Verification
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.group.registry import GroupLimit
from tidemill.coordinators.group.shard import GroupShard
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.runtime.partition_writer import Marker, PartitionWriter
from tidemill.coordinators.runtime.shard import Now, Result
from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC, Delta, MetadataImage
from tidemill.storage.files.disk import Disk

__all__ = ["GroupCoordinator", "java_hash"]

R = TypeVar("R")

_HASHES_MAX: Final = 10_000
"""Cached hashes; computing one takes about a microsecond for a name of ten letters."""


@lru_cache(_HASHES_MAX)
def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`, computed over UTF-16 code units."""
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (value * 31 + unit) & 0xFFFFFFFF
    # As in Kafka: 0 for the one number without an absolute value.
    return 0 if value == 1 << 31 else min(value, (1 << 32) - value)


@final
class GroupCoordinator:
    """Routes operations to the shards of the partitions that this broker leads."""

    def __init__(
        self,
        live: LiveConfig,
        *,
        clock: Clock,
        timers: LoopTimers,
        disk: Disk,
        image: Callable[[], MetadataImage],
    ) -> None:
        config = live.current.groups
        self._live = live
        self._limit = GroupLimit(config.groups_max)
        self._image = image
        matcher = Re2Matcher()
        self.runtime = CoordinatorRuntime(
            OFFSETS_TOPIC,
            lambda current: GroupShard(live.current.groups, current, self._limit, matcher=matcher),
            clock=clock,
            timers=timers,
            disk=disk,
            image=image,
            commit_timeout_s=config.offsets_commit_timeout_ms / 1000,
        )
        live.subscribe(self._config_changed)

    def partition_of(self, group_id: str) -> int:
        """The group's partition; COORDINATOR_NOT_AVAILABLE until the topic has been created."""
        topic = self._image().topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return java_hash(group_id) % len(topic.partitions)

    def write(
        self,
        group_id: str,
        operation: Callable[[GroupShard, Now], Result[R]],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Run an operation on the group's shard; see `CoordinatorRuntime.write`."""
        return self.runtime.write(self._own_partition(group_id), operation, refuse)

    def read(
        self,
        group_id: str,
        operation: Callable[[GroupShard, Now], R],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Read from the group's shard; see `CoordinatorRuntime.read`."""
        return self.runtime.read(self._own_partition(group_id), operation, refuse)

    def append_marker(self, index: int, marker: Marker) -> int:
        """End a producer's transaction in a partition; see `CoordinatorRuntime.append_marker`."""
        producer_id = marker.producer.producer_id
        self.runtime.read(
            index,
            lambda shard, _now: shard.pending.void_verifications(producer_id),
            lambda _code: None,
        )
        return self.runtime.append_marker(index, marker)

    def forget_verification(self, group_id: str, verification: Verification) -> None:
        """The coordinator of the transaction refused; KafkaError if the shard is gone anyway."""

        def forget(shard: GroupShard, _now: Now) -> None:
            shard.pending.end_verification(verification)

        self.read(group_id, forget, lambda _code: None)

    def shards(self) -> Iterator[GroupShard]:
        return self.runtime.shards()

    @property
    def is_loading(self) -> bool:
        return self.runtime.is_loading

    def _own_partition(self, group_id: str) -> int:
        topic = self._image().topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return java_hash(group_id) % len(topic.partitions)

    # --- following the image ---------------------------------------------------------------------

    def role_changed(self, name: TopicPartition, partition: PartitionWriter | None) -> None:
        """This broker leads the partition in its current epoch; None: it does not lead it."""
        if name.topic != OFFSETS_TOPIC:
            return
        if partition is None:
            self.runtime.resign(name.partition)
        else:
            self.runtime.lead(name.partition, partition)

    def metadata_changed(self, delta: Delta) -> None:
        if delta.topics_changed or delta.topics_deleted or delta.overrides_changed:
            self.runtime.metadata_changed(delta)

    def _config_changed(self) -> None:
        config = self._live.current.groups
        self._limit.groups_max = config.groups_max
        self.runtime.commit_timeout_s = config.offsets_commit_timeout_ms / 1000
        self.runtime.tell_shards(lambda shard: shard.config_changed(config))
