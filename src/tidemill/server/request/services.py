"""What requests may use of the layers below, room by room.

The broker builds one `Services` and every request shares it. No handler sees all of it: a handler
takes the context of its room, which is typed by the room's Protocol below, and mypy refuses
everything that this Protocol does not name. That costs a request nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, final

from tidemill.client.network.controller_link import ControllerLink
from tidemill.coordinators.group.group_coordinator import GroupCoordinator
from tidemill.coordinators.transaction.hanging_transactions import HangingTransactions
from tidemill.coordinators.transaction.marker_sender import MarkerSender
from tidemill.coordinators.transaction.marker_writer import MarkerWriter
from tidemill.coordinators.transaction.transaction_coordinator import TransactionCoordinator
from tidemill.coordinators.transaction.transaction_verifier import TransactionVerifier
from tidemill.core.byte_rate import ByteRate
from tidemill.core.clock import Clock
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.limits import LONG_BATCHES_MAX
from tidemill.core.logs import RateLimit
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.net import Net
from tidemill.core.rng import Rng
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.metadata.producer_ids import ProducerIds
from tidemill.replication.pending_logs import PendingLogs
from tidemill.replication.pulling.lost_leaders import LostLeaders
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.replication.serving.replica_sessions import ReplicaSessions
from tidemill.server.fetching.fetch_sessions import FetchSessions
from tidemill.server.fetching.parked_requests import ParkedRequests
from tidemill.server.fetching.view_reader import ViewReader
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.limits.quotas import Quotas
from tidemill.server.request.authorizer import Authorizer
from tidemill.server.request.partition_verifier import PartitionVerifier
from tidemill.storage.files.disk import Disk

__all__ = [
    "ClusterServices",
    "DataServices",
    "GroupServices",
    "RequestServices",
    "Services",
    "TopicServices",
    "TransactionServices",
]


class ClusterView(Protocol):
    """The cluster for requests that only look at it."""

    @property
    def image(self) -> MetadataImage: ...


class RequestServices(Protocol):
    """What every request uses: its context needs it."""

    config: LiveConfig
    telemetry: Telemetry
    authorizer: Authorizer

    @property
    def cluster(self) -> ClusterView: ...


class DataServices(RequestServices, Protocol):
    """For `handlers/data`: records are read, written and deleted."""

    clock: Clock
    disk: Disk
    timers: LoopTimers
    supervisor: Supervisor
    replicas: ReplicaManager
    producer_ids: ProducerIds
    fetch_sessions: FetchSessions
    parked: ParkedRequests
    replica_sessions: ReplicaSessions
    catch_up_rate: ByteRate
    views: ViewReader
    response_memory: MemoryPool
    fault_log: RateLimit
    long_batches: asyncio.Semaphore

    @property
    def verifier(self) -> PartitionVerifier: ...

    def checkpoint(self) -> Awaitable[None]:
        """Make durable where logs start; raises StorageFault."""
        ...


class TopicServices(RequestServices, Protocol):
    """For `handlers/topics`: the controller changes topics, their logs open later."""

    clock: Clock
    cluster: Cluster
    controller: ControllerLink
    pending_logs: PendingLogs


class GroupServices(TopicServices, Protocol):
    """For `handlers/groups` and `handlers/offsets`; the first group creates the offsets topic."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    rng: Rng


class TransactionServices(TopicServices, Protocol):
    """For `handlers/transactions`: producers get identities, and their transactions end."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    markers: MarkerWriter
    hanging: HangingTransactions
    producer_ids: ProducerIds


class ClusterServices(TopicServices, Protocol):
    """For `handlers/cluster`: what the broker and the cluster hold; Metadata may create topics."""

    disk: Disk
    replicas: ReplicaManager
    lost_leaders: LostLeaders
    quotas: Quotas


@final
@dataclass(slots=True, kw_only=True)
class Services:
    """Everything that connections and handlers use; built once by the composition root."""

    config: LiveConfig
    clock: Clock
    rng: Rng
    net: Net
    disk: Disk
    cluster: Cluster
    controller: ControllerLink
    replicas: ReplicaManager
    pending_logs: PendingLogs
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    markers: MarkerWriter
    hanging: HangingTransactions
    marker_sender: MarkerSender
    checkpoint: Callable[[], Awaitable[None]]
    telemetry: Telemetry
    authorizer: Authorizer
    timers: LoopTimers
    fetch_sessions: FetchSessions
    producer_ids: ProducerIds
    quotas: Quotas
    response_memory: MemoryPool
    supervisor: Supervisor
    parked: ParkedRequests
    catch_up_rate: ByteRate
    """What replicas that are far behind may be sent."""
    lost_leaders: LostLeaders = field(default_factory=LostLeaders)
    replica_sessions: ReplicaSessions = field(default_factory=ReplicaSessions)
    views: ViewReader = field(default_factory=ViewReader)
    fault_log: RateLimit = field(default_factory=RateLimit)
    """A failed disk refuses every request; the log says so once a minute."""
    long_batches: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(LONG_BATCHES_MAX)
    )
    """For batches that are checked in a thread: they leave the other threads to others."""
