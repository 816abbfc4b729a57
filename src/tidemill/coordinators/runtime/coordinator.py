"""What every coordinator of a broker is: the way from a name to the shard that has its state.

A name (a group, a transactional id) belongs to the partition of the coordinator's internal topic
that it hashes to (F54). The broker that leads this partition coordinates the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

from tidemill.coordinators.runtime.coordinator_runtime import CoordinatorRuntime
from tidemill.coordinators.runtime.partition_writer import PartitionWriter
from tidemill.coordinators.runtime.shard import Now, Result, Shard
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import COORDINATED_NAME_CHARS_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import MetadataImage

__all__ = ["Coordinator", "java_hash"]

S = TypeVar("S", bound=Shard)
R = TypeVar("R")

_HASHES_MAX = 10_000
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


class Coordinator(Generic[S]):
    """Routes operations to the shards of the partitions that this broker leads."""

    def __init__(
        self,
        topic: str,
        runtime: CoordinatorRuntime[S],
        image: Callable[[], MetadataImage],
        *,
        name_refusal: ErrorCode,
    ) -> None:
        """`name_refusal`: the answer to a name that is too long."""
        self._topic = topic
        self._name_refusal = name_refusal
        self._image = image
        self.runtime = runtime

    def partition_of(self, name: str) -> int:
        """The name's partition; COORDINATOR_NOT_AVAILABLE until the topic has been created."""
        return self._partition_of(name, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def write(
        self,
        name: str,
        operation: Callable[[S, Now], Result[R]],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Run an operation on the name's shard; see `CoordinatorRuntime.write`."""
        index = self._partition_of(name, ErrorCode.NOT_COORDINATOR)
        return self.runtime.write(index, operation, refuse)

    def read(
        self,
        name: str,
        operation: Callable[[S, Now], R],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Read from the name's shard; see `CoordinatorRuntime.read`."""
        index = self._partition_of(name, ErrorCode.NOT_COORDINATOR)
        return self.runtime.read(index, operation, refuse)

    def _partition_of(self, name: str, without_topic: ErrorCode) -> int:
        if len(name) > COORDINATED_NAME_CHARS_MAX:
            detail = f"a name has at most {COORDINATED_NAME_CHARS_MAX} characters"
            raise KafkaError(self._name_refusal, detail)
        topic = self._image().topics.get(self._topic)
        if topic is None:
            raise KafkaError(without_topic)
        return java_hash(name) % len(topic.partitions)

    def shards(self) -> Iterator[S]:
        return self.runtime.shards()

    @property
    def is_loading(self) -> bool:
        return self.runtime.is_loading

    def role_changed(self, name: TopicPartition, partition: PartitionWriter | None) -> None:
        """This broker leads the partition in its current epoch; None: it does not lead it."""
        if name.topic != self._topic:
            return
        if partition is None:
            self.runtime.resign(name.partition)
        else:
            self.runtime.lead(name.partition, partition)
