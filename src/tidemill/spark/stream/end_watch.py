"""Where the logs of a query end, and whether they still have what the query has read.

*Ends never go back.* A newly elected leader may know less than the previous one: an end before the
position counts as the position. If that lasts for `PATIENCE_S`, it is `DataLoss`.

*A new leader may have other records.* If the old leader failed with records that no other replica
had, the new one puts others at their offsets, and its end soon looks healthy. So a query keeps the
leader epoch under which it has read, and asks a leader of a later epoch where that epoch ended: if
that is before the position, the records between were read and are lost, and others that took their
offsets are not read yet.

*With Trigger.AvailableNow* the query ends where the logs ended when it was started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.epoch_lookup import epoch_ends
from tidemill.client.network.offset_lookup import ListedOffset
from tidemill.core.clock import Clock
from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import PartitionOffsets
from tidemill.spark.options.source_options import SourceOptions
from tidemill.spark.source.data_loss import LossReport
from tidemill.spark.source.positions import log_ends, resolve_subscription
from tidemill.spark.stream.lasting_signs import LastingSigns
from tidemill.spark.stream.topic_watch import PATIENCE_S

__all__ = ["EndWatch"]


@final
class EndWatch:
    """The ends of the logs of one query."""

    def __init__(self, options: SourceOptions, losses: LossReport, clock: Clock) -> None:
        self._options = options
        self._losses = losses
        self._clock = clock
        self._behind = LastingSigns(PATIENCE_S)
        self._target: dict[TopicPartition, ListedOffset] | None = None
        self._epoch_ends: dict[TopicPartition, tuple[int, int, int]] = {}
        """The last answer for a partition: the epoch asked for, the leader's epoch, the end."""
        self.listed: dict[TopicPartition, ListedOffset] = {}
        """The last known ends and their leaders' epochs."""

    @property
    def has_target(self) -> bool:
        return self._target is not None

    @property
    def may_pass(self) -> bool:
        """Whether an end is behind that may come back."""
        return self._behind.may_pass(self._clock.monotonic())

    async def fix_target(self, cluster: ClusterClient) -> None:
        """For Trigger.AvailableNow: the query ends here."""
        covered = await resolve_subscription(cluster, self._options.subscription)
        self._target = await log_ends(cluster, covered.partitions, self._options.isolation_level)

    async def ends(
        self, cluster: ClusterClient, positions: Mapping[TopicPartition, int]
    ) -> PartitionOffsets:
        """How far each partition can be read; never before its position."""
        self.listed = await self._list(cluster, positions)
        behind = {p for p, end in self.listed.items() if end.offset < positions[p]}
        for partition in self._behind.lasting(behind, self._clock.monotonic()):
            self._losses.report(
                f"{partition} ends at {self.listed[partition].offset}, before "
                f"{positions[partition]}, which was read"
            )
        return {p: max(end.offset, positions[p]) for p, end in self.listed.items()}

    async def _list(
        self, cluster: ClusterClient, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset]:
        if self._target is None:
            return await log_ends(cluster, positions, self._options.isolation_level)
        known = {p: end for p, end in self._target.items() if p in positions}
        # A partition that came after the target was fixed is left to the next run.
        fixed = {p: known.get(p, ListedOffset(at, -1)) for p, at in positions.items()}
        behind = [p for p, end in fixed.items() if end.offset < positions[p]]
        if not behind:
            return fixed
        now = await log_ends(cluster, behind, self._options.isolation_level)
        return fixed | {
            p: end._replace(offset=min(end.offset, positions[p])) for p, end in now.items()
        }

    def epochs(self, positions: Mapping[TopicPartition, int]) -> PartitionOffsets:
        """The leader epoch under which each of `positions` was within the log, where known."""
        return {
            partition: end.leader_epoch
            for partition, end in self.listed.items()
            if end.leader_epoch >= 0 and positions[partition] <= end.offset
        }

    async def cut_off(
        self,
        cluster: ClusterClient,
        epochs: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int],
    ) -> PartitionOffsets:
        """Where logs were cut off before `positions`, which were read under `epochs`.

        DataLoss if one was.
        """
        changed = {p: epoch for p, epoch in epochs.items() if epoch < _leader_epoch(cluster, p)}
        asked = {
            p: epoch
            for p, epoch in changed.items()
            if self._epoch_ends.get(p, (-1, -1, -1))[:2] != (epoch, _leader_epoch(cluster, p))
        }
        for partition, end in (await epoch_ends(cluster, asked) if asked else {}).items():
            leader_epoch = _leader_epoch(cluster, partition)
            self._epoch_ends[partition] = (asked[partition], leader_epoch, end)
        cuts = {p: self._epoch_ends[p][2] for p in changed if p in self._epoch_ends}
        cuts = {p: end for p, end in cuts.items() if 0 <= end < positions[p]}
        for partition, end in sorted(cuts.items()):
            self._losses.report(
                f"{partition} was cut off at {end} when its leader changed: records from there to "
                f"{positions[partition] - 1} were read and are gone"
            )
        return cuts


def _leader_epoch(cluster: ClusterClient, partition: TopicPartition) -> int:
    info = cluster.metadata.topics.get(partition.topic)
    known = info.partitions.get(partition.partition) if info is not None else None
    return -1 if known is None else known.leader_epoch
