"""Sessions with a ZooKeeper server, for tests."""

from __future__ import annotations

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config.zookeeper_config import ZookeeperConfig
from tidemill.metadata.store.zookeeper_store import LeasePaths, ZookeeperCoord

SESSION_S = 2.0


def new_coord(
    connect: str, *, broker_id: int = 0, clock: Clock | None = None, session_s: float = SESSION_S
) -> ZookeeperCoord:
    """A session as broker `broker_id` has it."""
    config = ZookeeperConfig(connect=connect, session_timeout_ms=int(session_s * 1000))
    paths = LeasePaths(f"/renew/{broker_id}", "/head", f"/brokers/{broker_id}")
    return ZookeeperCoord(config, clock or SystemClock(), paths)
