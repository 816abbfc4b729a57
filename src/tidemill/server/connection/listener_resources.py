"""What the connections of one listener share: services, memory, slices of the loop, deadlines.

Clients and other brokers have a listener each. What only a few of either can hold at a time is
separate, so that no crowd of clients keeps a follower from its leader: slots for connections,
memory for requests, turns of requests in several steps (S12). The rest is shared, because it costs
memory or divides the one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import final

from tidemill.core.limits import (
    FRAME_DEADLINE_S,
    INTERNAL_REQUEST_BYTES_MAX,
    SLOW_REQUESTS_MAX,
    WRITE_STALL_DEADLINE_S,
    WRITE_STALL_PRESSED_DEADLINE_S,
)
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.server.connection.admission import Admission
from tidemill.server.connection.connection_log import ConnectionLog
from tidemill.server.connection.receive_buffer import Scratch, divide_request_memory
from tidemill.server.limits.loop_slices import LoopSlices
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.request.context import Peer
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.services import Services

__all__ = ["ClientDeadlines", "ListenerResources"]


def _nothing(_peer: Peer) -> None:
    """Nobody wants to hear of ended connections."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDeadlines:
    """How long the broker waits for a client to send or to read."""

    frame_s: float = FRAME_DEADLINE_S
    write_stall_s: float = WRITE_STALL_DEADLINE_S
    write_stall_pressed_s: float = WRITE_STALL_PRESSED_DEADLINE_S
    """Replaces `write_stall_s` while unread answers use up the memory for answers (S40)."""
    idle_s: float = 600.0


@final
class ListenerResources:
    """Built once per listener by the composition root; each connection holds a reference."""

    def __init__(
        self,
        services: Services,
        dispatcher: Dispatcher,
        supervisor: Supervisor,
        *,
        connections_max: int,
        deadlines: ClientDeadlines,
        failed: Callable[[str, BaseException], None],
        clients: ListenerResources | None = None,
    ) -> None:
        """`clients`: make those of the INTERNAL listener, which stands beside this one."""
        self.services = services
        self.dispatcher = dispatcher
        self.supervisor = supervisor
        self.deadlines = deadlines
        self.failed = failed
        self.is_internal = clients is not None
        self.ended: Callable[[Peer], None] = _nothing
        """Hears of every connection that ends."""
        self.slow_requests = asyncio.Semaphore(SLOW_REQUESTS_MAX)
        self.metadata_requests = asyncio.Semaphore(SLOW_REQUESTS_MAX)
        """Apart: clients find leaders while others wait for the store or for replicas."""
        self.scratch: Scratch
        self.loop_slices: LoopSlices
        self.connection_log: ConnectionLog
        if clients is not None:
            limit_bytes = INTERNAL_REQUEST_BYTES_MAX
            self.scratch = clients.scratch
            self.loop_slices = clients.loop_slices
            self.connection_log = clients.connection_log
        else:
            config = services.config.static
            limit_bytes, spare_bytes = divide_request_memory(
                config.request_memory_bytes, config.socket_request_max_bytes
            )
            self.scratch = Scratch(spare_bytes)
            self.loop_slices = LoopSlices(services.clock)
            self.connection_log = ConnectionLog(services.clock, services.telemetry)
        self.request_memory = MemoryPool(limit_bytes, lends=True)
        self.admission = Admission(
            config=services.config,
            clock=services.clock,
            telemetry=services.telemetry,
            connection_log=self.connection_log,
            connections_max=connections_max,
            is_internal=self.is_internal,
        )

    def routed(self, dispatcher: Dispatcher, ended: Callable[[Peer], None]) -> ListenerResources:
        """Those of the ROUTE listener: the same limits and pools, but other handlers."""
        beside = copy(self)
        beside.dispatcher = dispatcher
        beside.ended = ended
        return beside

    @property
    def write_stall_s(self) -> float:
        """How long a client may leave its answers unread, given the memory in use now."""
        pressed = self.services.response_memory.is_exhausted
        return self.deadlines.write_stall_pressed_s if pressed else self.deadlines.write_stall_s

    async def wait_response_memory(self) -> None:
        """Wait until there is memory for one more long answer (S11, S40).

        The wait ends: a client that does not read its answers is dropped after `write_stall_s`.
        Brokers do not wait: their answers are short, and clients hold the memory.
        """
        if self.is_internal:
            return
        pool = self.services.response_memory
        while pool.is_exhausted:
            given_back = asyncio.Event()
            pool.wait(given_back.set)
            await given_back.wait()
