"""Which coordination store a broker uses, by its configuration."""

from __future__ import annotations

from tidemill.core.clock import Clock
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.metadata.format_1 import converted_from_format_1
from tidemill.metadata.image.head import HEAD
from tidemill.metadata.image.nodes import broker_path
from tidemill.metadata.store.coord import Coord
from tidemill.metadata.store.sqlite_store import SqliteCoord

__all__ = ["open_store"]


def open_store(config: BrokerConfig, clock: Clock) -> Coord:
    """A session that is not started yet: ZooKeeper if it is named, else the file of this host."""
    if not config.zookeeper.connect:
        return SqliteCoord(config.store_path, clock, convert=converted_from_format_1)
    # Here, because most brokers need no kazoo.
    from tidemill.metadata.store.zookeeper_store import LeasePaths, ZookeeperCoord

    paths = LeasePaths(
        renew=f"/renew/{config.node_id}", head=HEAD, registration=broker_path(config.node_id)
    )
    return ZookeeperCoord(config.zookeeper, clock, paths)
