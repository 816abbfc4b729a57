"""The coordinators of one broker; a new kind of coordinator is added here."""

from __future__ import annotations

from typing import final

from tidemill.broker.background import Loops
from tidemill.broker.seams import Seams
from tidemill.coordinators.group.group_coordinator import GroupCoordinator
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import Delta, PartitionImage
from tidemill.replication.partition import Partition

__all__ = ["Coordinators"]


@final
class Coordinators:
    """Each coordinates what hashes to the partitions of its internal topic that are led here."""

    def __init__(self, seams: Seams, cluster: Cluster, timers: LoopTimers) -> None:
        self.groups = GroupCoordinator(
            cluster.live,
            clock=seams.clock,
            timers=timers,
            disk=seams.disk,
            image=lambda: cluster.image,
            lease=cluster.lease,
        )

    def loops(self) -> Loops:
        yield "group coordinator", self.groups.runtime.run()

    def role_changed(self, partition: Partition, _image: PartitionImage) -> None:
        self.groups.role_changed(partition.name, partition if partition.is_leader else None)

    def metadata_changed(self, delta: Delta) -> None:
        self.groups.metadata_changed(delta)
