"""A whole broker on the running event loop, over a disk that the test brings, and its client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemill.broker import Broker
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.config.broker_config import broker_config
from tidemill.core.net import AsyncioNet
from tidemill.storage.files.disk import Disk


@asynccontextmanager
async def serving(data_dir: str, disk: Disk, **values: object) -> AsyncIterator[ClusterClient]:
    """A client of a broker that runs until the block ends."""
    settings = {"listeners": "127.0.0.1:0", "data.dir": data_dir, **values}
    broker = Broker(broker_config(values=settings), disk=disk)
    endpoint = await broker.start()
    try:
        async with ClusterClient(AsyncioNet(), [(*endpoint,)]) as cluster:
            yield cluster
    finally:
        await broker.stop()
