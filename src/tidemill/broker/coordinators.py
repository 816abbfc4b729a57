"""The coordinators of one broker; a new kind of coordinator is added here."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.broker.background import Loops
from tidemill.broker.peers import make_peer_links
from tidemill.broker.seams import Seams
from tidemill.coordinators.group.group_coordinator import GroupCoordinator
from tidemill.coordinators.transaction.hanging_transactions import HangingTransactions
from tidemill.coordinators.transaction.marker_sender import MarkerSender
from tidemill.coordinators.transaction.marker_writer import MarkerWriter
from tidemill.coordinators.transaction.transaction_coordinator import TransactionCoordinator
from tidemill.coordinators.transaction.transaction_verifier import TransactionVerifier
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import Delta, MetadataImage, PartitionImage
from tidemill.replication.leader_log import LeaderLog
from tidemill.replication.partition import Partition

__all__ = ["Coordinators"]


@final
class Coordinators:
    """Each coordinates what hashes to the partitions of its internal topic that are led here."""

    def __init__(
        self,
        seams: Seams,
        cluster: Cluster,
        timers: LoopTimers,
        *,
        supervisor: Supervisor,
        find_log: Callable[[TopicPartition], LeaderLog | None],
    ) -> None:
        """`find_log` gives the log of a partition of this broker."""

        def image() -> MetadataImage:
            return cluster.image

        def knows_all_topics() -> bool:
            return cluster.knows_all_topics

        self.groups = GroupCoordinator(
            cluster.live,
            clock=seams.clock,
            timers=timers,
            disk=seams.disk,
            image=image,
            knows_all_topics=knows_all_topics,
        )
        self.transactions = TransactionCoordinator(
            cluster.live,
            clock=seams.clock,
            timers=timers,
            disk=seams.disk,
            image=image,
            knows_all_topics=knows_all_topics,
            carry_out=lambda *decided: self.sender.carry_out(*decided),
        )
        self.markers = MarkerWriter(find_log, self.groups, clock=seams.clock, timers=timers)
        self._marker_links = make_peer_links(seams, cluster, "markers")
        self._verifier_links = make_peer_links(seams, cluster, "transactions")
        self.sender = MarkerSender(
            cluster.broker_id,
            self.transactions.runtime,
            self.markers,
            self._marker_links,
            image=image,
            knows_all_topics=knows_all_topics,
            clock=seams.clock,
            timers=timers,
            supervisor=supervisor,
        )
        self.verifier = TransactionVerifier(
            cluster.broker_id,
            self.transactions,
            self._verifier_links,
            image=image,
            supervisor=supervisor,
        )
        self.hanging = HangingTransactions(
            cluster.broker_id,
            self.transactions,
            self._verifier_links,
            self.markers,
            find=find_log,
            image=image,
            knows_all_topics=knows_all_topics,
        )

    def loops(self) -> Loops:
        yield "group coordinator", self.groups.runtime.run()
        yield "transaction coordinator", self.transactions.runtime.run()

    def role_changed(self, partition: Partition, _image: PartitionImage) -> None:
        led = partition if partition.is_leader else None
        self.groups.role_changed(partition.name, led)
        self.transactions.role_changed(partition.name, led)

    def metadata_changed(self, delta: Delta) -> None:
        self.groups.metadata_changed(delta)

    def close(self) -> None:
        """End the connections to other brokers."""
        self._marker_links.close()
        self._verifier_links.close()
