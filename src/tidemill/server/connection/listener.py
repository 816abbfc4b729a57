"""A listening address: accepts connections, drops the stalled ones, drains all on shutdown."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import UserError
from tidemill.core.limits import DRAIN_DEADLINE_S
from tidemill.core.net import Net, ServerHandle
from tidemill.server.connection.connection import Connection
from tidemill.server.connection.listener_resources import ListenerResources

__all__ = ["Listener"]

SWEEP_INTERVAL_S = 5.0
DRAIN_POLL_S = 0.01
UNREAD_DEADLINE_S = 2.0
"""On shutdown, a client that has read nothing for this long is not waited for."""
CLOSE_DEADLINE_S = 0.5
"""For the transports to close; they have nothing left to send."""


@final
class Listener:
    """Owns the listening socket and the life of its connections; decides nothing on requests."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._resources: ListenerResources | None = None
        self._server: ServerHandle | None = None

    async def bind(self, endpoint: Endpoint, *, option: str = "--listen") -> Endpoint:
        """Bind the address and return the bound one; UserError, naming `option`, if that fails."""
        try:
            self._server = await self._net.listen(
                lambda: Connection(self._require_resources()), endpoint.host, endpoint.port
            )
        except OSError as error:
            raise UserError(f"cannot listen on {endpoint}: {_reason(error, option)}") from error
        return self.address

    @property
    def address(self) -> Endpoint:
        """The bound one."""
        assert self._server is not None
        return Endpoint(*self._server.address)

    async def serve(self, resources: ListenerResources) -> None:
        """Start to accept connections."""
        self._resources = resources
        assert self._server is not None
        await self._server.start_serving()

    def _require_resources(self) -> ListenerResources:
        assert self._resources is not None, "connections come only after serve()"
        return self._resources

    async def run(self) -> None:
        """Drop connections that exceed a deadline, every few seconds, for ever."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        resources = self._require_resources()
        now = resources.services.clock.monotonic()
        for connection in list(resources.admission.connections):
            connection.check_deadlines(now)

    async def stop(self, drain_s: float = DRAIN_DEADLINE_S) -> None:
        """Accept and start nothing more, answer what was started, then close everything."""
        if self._server is not None:
            self._server.close()
        resources = self._resources
        if resources is None:
            return
        resources.admission.is_open = False
        connections = resources.admission.connections
        for connection in list(connections):
            connection.drain()
        resources.services.parked.stop()
        await self._wait_until(
            drain_s,
            lambda: all(one.is_drained or one.unread_s > UNREAD_DEADLINE_S for one in connections),
        )
        for connection in list(connections):
            if connection.is_drained:
                connection.close()
            else:
                connection.abort()
        resources.loop_slices.close()
        await self._wait_until(CLOSE_DEADLINE_S, lambda: not connections)

    async def _wait_until(self, deadline_s: float, is_met: Callable[[], bool]) -> None:
        for _ in range(int(deadline_s / DRAIN_POLL_S)):
            if is_met():
                return
            await asyncio.sleep(DRAIN_POLL_S)


def _reason(error: OSError, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"the port is in use; stop the other program or choose another with {option}"
    return error.strerror or str(error)
