"""A listening address: accepts connections, drops those that stall, drains on shutdown."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import UserError
from tidemill.core.limits import DRAIN_DEADLINE_S
from tidemill.core.net import Net, ServerHandle
from tidemill.server.connection.admission import ListenerState
from tidemill.server.connection.connection import Connection

__all__ = ["Listener"]

SWEEP_INTERVAL_S = 5.0
DRAIN_POLL_S = 0.01
UNREAD_DEADLINE_S = 2.0
"""A client that takes none of its answers for so long is not waited for at the end."""
CLOSE_DEADLINE_S = 0.5
"""For the transports to say goodbye; they have nothing left to send."""


@final
class Listener:
    """Owns the socket and the life of its connections; decides nothing about requests."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._state: ListenerState | None = None
        self._server: ServerHandle | None = None

    async def bind(self, endpoint: Endpoint) -> Endpoint:
        """Take the address; the one really bound. UserError if it cannot be had."""
        try:
            self._server = await self._net.listen(
                lambda: Connection(self._require_state()), endpoint.host, endpoint.port
            )
        except OSError as error:
            raise UserError(f"cannot listen on {endpoint}: {_reason(error)}") from error
        host, port = self._server.address
        return Endpoint(host, port)

    async def serve(self, state: ListenerState) -> None:
        """Accept connections from now on."""
        self._state = state
        assert self._server is not None
        await self._server.start_serving()

    def _require_state(self) -> ListenerState:
        assert self._state is not None, "connections come only after serve()"
        return self._state

    async def run(self) -> None:
        """Look for connections that overstayed a deadline, for ever."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        state = self._require_state()
        now = state.services.clock.monotonic()
        for connection in list(state.connections):
            connection.check_deadlines(now)

    async def stop(self) -> None:
        """Accept nobody, start nothing, let started requests be answered, then close everything."""
        if self._server is not None:
            self._server.close()
        state = self._state
        if state is None:
            return
        state.accepting = False
        for connection in list(state.connections):
            connection.drain()
        state.services.parked.stop()
        await self._wait_until(
            DRAIN_DEADLINE_S,
            lambda: all(
                one.is_drained or one.unread_s > UNREAD_DEADLINE_S for one in state.connections
            ),
        )
        for connection in list(state.connections):
            if connection.is_drained:
                connection.close()
            else:
                connection.abort()
        await self._wait_until(CLOSE_DEADLINE_S, lambda: not state.connections)

    async def _wait_until(self, deadline_s: float, is_so: Callable[[], bool]) -> None:
        for _ in range(int(deadline_s / DRAIN_POLL_S)):
            if is_so():
                return
            await asyncio.sleep(DRAIN_POLL_S)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop the other program or choose another with --listen"
    return error.strerror or str(error)
