"""A shard with the partition under it."""

from __future__ import annotations

from typing import Generic, TypeVar, final

from tidemill.coordinators.runtime.open_batch import OpenBatch
from tidemill.coordinators.runtime.partition_writer import PartitionWriter
from tidemill.coordinators.runtime.shard import Shard
from tidemill.core.loop.timers import Timer

__all__ = ["HostedShard"]

S = TypeVar("S", bound=Shard)


@final
class HostedShard(Generic[S]):
    """One shard and the partition under it."""

    __slots__ = (
        "acknowledged_offset",
        "append_failures",
        "appended_offset",
        "epoch",
        "expires_from_ms",
        "index",
        "is_loaded",
        "load_failures",
        "open_batch",
        "partition",
        "shard",
        "timer",
    )

    def __init__(self, index: int, partition: PartitionWriter, shard: S) -> None:
        self.index = index
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.shard = shard
        self.is_loaded = False
        self.load_failures = 0
        """Loads of the partition that failed before this one."""
        self.append_failures = 0
        """Appends after which it was loaded again, in a row. Until one succeeds, records are
        appended before their replay."""
        self.expires_from_ms = 0
        """No deadline is looked at before (monotonic): what it writes would be refused again."""
        self.open_batch: OpenBatch | None = None
        """Records that the shard has replayed and the log does not hold yet."""
        self.appended_offset = 0
        """The offset behind the last record in the log that the shard has replayed."""
        self.acknowledged_offset = -1
        """Everything below it is committed; updated only when a reply has waited for it."""
        self.timer: tuple[int, Timer] | None = None
        """When the runtime next looks at the deadlines, or loads again (monotonic, ms)."""

    def appended_alone(self, next_offset: int) -> None:
        """Records were appended before their replay."""
        self.appended_offset = next_offset
        self.append_failures = self.expires_from_ms = 0
