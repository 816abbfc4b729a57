"""What handlers may use of the layers below, in one place; they see them only through it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import final

from tidemill.coordinators.group.group_coordinator import GroupCoordinator
from tidemill.core.clock import Clock
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.logs import RateLimit
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.net import Net
from tidemill.core.rng import Rng
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.producer_ids import ProducerIds
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.fetching.fetch_sessions import FetchSessions
from tidemill.server.fetching.parked_fetches import ReadyQueue
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.limits.quotas import Quotas
from tidemill.server.request.authorizer import Authorizer
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Disk

__all__ = ["Services"]


@final
@dataclass(slots=True, kw_only=True)
class Services:
    """Everything of the broker that handlers work with; built once by the composition root."""

    config: BrokerConfig
    clock: Clock
    rng: Rng
    net: Net
    disk: Disk
    cluster: Cluster
    replicas: ReplicaManager
    groups: GroupCoordinator
    directory: LogDirectory
    checkpoint: Callable[[], Awaitable[None]]
    """Make durable where logs start; raises StorageFault."""
    telemetry: Telemetry
    authorizer: Authorizer
    timers: LoopTimers
    sessions: FetchSessions
    producer_ids: ProducerIds
    quotas: Quotas
    response_memory: MemoryPool
    supervisor: Supervisor
    ready: ReadyQueue
    fault_log: RateLimit = field(default_factory=RateLimit)
    """Faults of the disk come with every request; the operator hears of them once a minute."""
