"""What the connections of one listener share, and who is admitted (S12, S13)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import INT32_MAX
from tidemill.core.limits import (
    FRAME_DEADLINE_S,
    SLOW_REQUESTS_MAX,
    WRITE_STALL_DEADLINE_S,
    WRITE_STALL_PRESSED_DEADLINE_S,
)
from tidemill.core.logs import RateLimit, shown
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.server.connection.receive_buffer import Scratch
from tidemill.server.limits.loop_slices import Turns
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.limits.token_buckets import TokenBuckets
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.services import Services

if TYPE_CHECKING:
    from tidemill.server.connection.connection import Connection

__all__ = ["Deadlines", "ListenerState"]

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a client may take for what only it can do."""

    frame_s: float = FRAME_DEADLINE_S
    write_stall_s: float = WRITE_STALL_DEADLINE_S
    write_stall_pressed_s: float = WRITE_STALL_PRESSED_DEADLINE_S
    """The same, while answers that nobody takes use up the memory for others' (S40)."""
    idle_s: float = 600.0


@final
class ListenerState:
    """Connections by admission order, their limits, and the resources they read into."""

    def __init__(
        self,
        name: str,
        services: Services,
        dispatcher: Dispatcher,
        supervisor: Supervisor,
        *,
        connections_max: int,
        deadlines: Deadlines,
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self.name = name
        self.services = services
        self.dispatcher = dispatcher
        self.supervisor = supervisor
        self.deadlines = deadlines
        self.failed = failed
        self.scratch = Scratch()
        self.request_memory = MemoryPool(services.config.request_memory_bytes, lends=True)
        self.turns = Turns(services.clock)
        self.slow_requests = asyncio.Semaphore(SLOW_REQUESTS_MAX)
        self.connections: dict[Connection, None] = {}
        self.accepting = True
        self._connections_max = connections_max
        self._per_address: dict[str, int] = {}
        self._new_connections = _new_connection_buckets(services.config)
        self._log_limit = RateLimit()

    def admit(self, connection: Connection, address: str) -> bool:
        """Whether one more connection is welcome: by room, and by what this address has had."""
        if not self.accepting:
            return False
        telemetry = self.services.telemetry
        refusal = self._refusal(address)
        if refusal is not None:
            telemetry.connections_refused += 1
            self.note_closed(address, refusal)
            return False
        telemetry.connections_accepted += 1
        self.connections[connection] = None
        self._per_address[address] = self._per_address.get(address, 0) + 1
        return True

    def _refusal(self, address: str) -> str | None:
        """Why an address gets no further connection now."""
        per_address_max = self.services.config.max_connections_per_ip
        if len(self.connections) >= self._connections_max:
            return "too many connections"
        if self._per_address.get(address, 0) >= per_address_max:
            return "too many connections"
        now = self.services.clock.monotonic()
        if self._new_connections is not None and not self._new_connections.take(address, 1, now):
            return "it connects too often"
        return None

    def forget(self, connection: Connection, address: str) -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        left = self._per_address[address] - 1
        if left:
            self._per_address[address] = left
        else:
            del self._per_address[address]

    @property
    def write_stall_s(self) -> float:
        """How long a client may take no answers, as things are."""
        pressed = self.services.response_memory.is_exhausted
        return self.deadlines.write_stall_pressed_s if pressed else self.deadlines.write_stall_s

    async def wait_response_room(self) -> None:
        """Wait until clients have taken enough of their answers for one more long one (S11, S40).

        It ends: who does not take them is dropped after a while.
        """
        pool = self.services.response_memory
        while pool.is_exhausted:
            came = asyncio.Event()
            pool.wait(came.set)
            await came.wait()

    def note_closed(self, address: str, reason: str) -> None:
        """One line per peer and minute, whatever it does."""
        if self._log_limit.allows(address, self.services.clock.monotonic()):
            log.warning("closed connection from %s: %s", shown(address), shown(reason))

    def note_bug(self, address: str, error: Exception) -> None:
        """A request ended in a bug of ours: counted, and shown where it happened."""
        self.services.telemetry.unhandled_errors += 1
        if self._log_limit.allows(address, self.services.clock.monotonic()):
            log.error("a request failed, its connection is closed", exc_info=error)


def _new_connection_buckets(config: BrokerConfig) -> TokenBuckets | None:
    """How often each address may connect; None: as often as it likes."""
    rate = config.max_connection_creation_rate_per_ip
    return None if rate == INT32_MAX else TokenBuckets(per_s=rate, burst=rate)
