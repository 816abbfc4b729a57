"""Several brokers on the running event loop, with real sockets and files and a store in memory.

It runs what the simulation runs, the same brokers and the same protocol between them, but on the
machine's own clock, network and disk. What both show is no artefact of the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, final

from tidemill.broker import Broker
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.net import AsyncioNet, Net
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE, Software
from tidemill.metadata.store.memory_store import MemoryCoord, MemoryCoordServer
from tidemill.storage.files.disk import OsDisk

__all__ = ["InProcessCluster"]


@final
@dataclass(slots=True)
class _Member:
    """One running broker and its resources."""

    broker: Broker
    disk: OsDisk
    session: MemoryCoord
    endpoint: Endpoint


@final
class InProcessCluster:
    """Use as `async with`: brokers 0, 1, 2 and so on, each in its own directory."""

    def __init__(
        self, data_dir: str, *, brokers: int = 3, values: Mapping[str, object] | None = None
    ) -> None:
        self.clock: Clock = SystemClock()
        self._data_dir = data_dir
        self._count = brokers
        self._values = values or {}
        self._coord = MemoryCoordServer()
        self._members: dict[int, _Member] = {}

    async def __aenter__(self) -> Self:
        for broker_id in range(self._count):
            await self.start_broker(broker_id)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for broker_id in list(self._members):
            await self.stop_broker(broker_id)

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        """Addresses of the running brokers."""
        return [(*member.endpoint,) for member in self._members.values()]

    def client_net(self) -> Net:
        return AsyncioNet()

    def broker(self, broker_id: int) -> Broker:
        return self._members[broker_id].broker

    async def start_broker(self, broker_id: int, *, software: Software = THIS_SOFTWARE) -> None:
        """Start a broker on the data that its last run left, perhaps with other software."""
        own = {
            "node.id": broker_id,
            "listeners": "127.0.0.1:0",
            "data.dir": f"{self._data_dir}/broker-{broker_id}",
        }
        disk, session = OsDisk(), self._coord.session()
        config = broker_config(values={**own, **self._values})
        broker = Broker(config, disk=disk, coord=session, software=software)
        self._members[broker_id] = _Member(broker, disk, session, await broker.start())

    async def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly."""
        member = self._members.pop(broker_id)
        await member.broker.stop()
        member.disk.close()

    async def kill(self, broker_id: int) -> None:
        """End a broker as a crash of its process would: nothing answered, flushed or marked.

        Its session expires at once, so that the others need not wait for it.
        """
        member = self._members.pop(broker_id)
        await member.broker.abandon()
        member.disk.close()
        self._coord.expire(member.session)
