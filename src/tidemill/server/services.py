"""What handlers may use of the layers below, in one place; they see them only through it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import final

from tidemill.coordinators.group_coordinator import GroupCoordinator
from tidemill.core.broker_config import BrokerConfig
from tidemill.core.clock import Clock
from tidemill.core.lifecycle import Supervisor
from tidemill.core.logs import RateLimit
from tidemill.core.net import Net
from tidemill.core.rng import Rng
from tidemill.core.telemetry import Telemetry
from tidemill.core.timers import LoopTimers
from tidemill.metadata.cluster import Cluster
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.authorizer import Authorizer
from tidemill.server.fetch_sessions import FetchSessions
from tidemill.server.memory_pool import MemoryPool
from tidemill.server.producer_ids import ProducerIds
from tidemill.server.quotas import Quotas
from tidemill.server.ready_queue import ReadyQueue
from tidemill.storage.disk import Disk
from tidemill.storage.log_directory import LogDirectory

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
