"""The transaction coordinator of one broker: finds an id's partition and runs operations on it.

A transactional id belongs to the partition of `__transaction_state` that its name hashes to. The
broker that leads this partition coordinates the id's transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, final

from tidemill.coordinators.group.group_coordinator import java_hash
from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.runtime.hosted_shard import CarryOut
from tidemill.coordinators.runtime.partition_writer import PartitionWriter
from tidemill.coordinators.runtime.shard import Now, Result
from tidemill.coordinators.transaction.shard import TransactionLimit, TransactionShard
from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import TRANSACTION_STATE_TOPIC, MetadataImage
from tidemill.storage.files.disk import Disk

__all__ = ["TransactionCoordinator"]

R = TypeVar("R")


@final
class TransactionCoordinator:
    """Routes operations to the shards of the partitions that this broker leads."""

    def __init__(
        self,
        live: LiveConfig,
        *,
        clock: Clock,
        timers: LoopTimers,
        disk: Disk,
        image: Callable[[], MetadataImage],
        carry_out: CarryOut,
    ) -> None:
        """`carry_out` gets `MarkersWanted` of decisions that are durable."""
        config = live.current
        self._live = live
        self._limit = TransactionLimit(config.transactions.transactional_ids_max)
        self._image = image
        self.runtime = CoordinatorRuntime(
            TRANSACTION_STATE_TOPIC,
            lambda _image: TransactionShard(live.current.transactions, self._limit),
            clock=clock,
            timers=timers,
            disk=disk,
            image=image,
            commit_timeout_s=config.groups.offsets_commit_timeout_ms / 1000,
            carry_out=carry_out,
        )
        live.subscribe(self._config_changed)

    def partition_of(self, transactional_id: str) -> int:
        """The id's partition; COORDINATOR_NOT_AVAILABLE until the topic has been created."""
        topic = self._image().topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return java_hash(transactional_id) % len(topic.partitions)

    def write(
        self,
        transactional_id: str,
        operation: Callable[[TransactionShard, Now], Result[R]],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Run an operation on the id's shard; see `CoordinatorRuntime.write`."""
        return self.runtime.write(self._own_partition(transactional_id), operation, refuse)

    def read(
        self,
        transactional_id: str,
        operation: Callable[[TransactionShard, Now], R],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Read from the id's shard; see `CoordinatorRuntime.read`."""
        return self.runtime.read(self._own_partition(transactional_id), operation, refuse)

    def shards(self) -> Iterator[TransactionShard]:
        return self.runtime.shards()

    @property
    def is_loading(self) -> bool:
        return self.runtime.is_loading

    def _own_partition(self, transactional_id: str) -> int:
        topic = self._image().topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return java_hash(transactional_id) % len(topic.partitions)

    def role_changed(self, name: TopicPartition, partition: PartitionWriter | None) -> None:
        """This broker leads the partition in its current epoch; None: it does not lead it."""
        if name.topic != TRANSACTION_STATE_TOPIC:
            return
        if partition is None:
            self.runtime.resign(name.partition)
        else:
            self.runtime.lead(name.partition, partition)

    def _config_changed(self) -> None:
        config = self._live.current
        self._limit.ids_max = config.transactions.transactional_ids_max
        self.runtime.commit_timeout_s = config.groups.offsets_commit_timeout_ms / 1000
        self.runtime.tell_shards(lambda shard: shard.config_changed(config.transactions))
