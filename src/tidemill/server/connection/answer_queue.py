"""The answers of one connection on their way out: in order, few system calls, accounted memory.

HOT PATH: `place` and `_send` run once per request, `flush` once per turn.

No answer passes an older one (T8). An answer that is ready while older ones are not waits here in
encoded form, and what the kernel does not take waits in the transport: both are taken from the
broker's pool for answers (S40), views of mapped files apart, which are the page cache's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, final

from tidemill.core.limits import KIB, REQUEST_BYTES_IN_FLIGHT_MAX, REQUESTS_IN_FLIGHT_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.core.telemetry import ApiCounters
from tidemill.server.request.dispatch import BoundHandler
from tidemill.server.request.services import Services
from tidemill.wire.primitives import Buffer

__all__ = ["JOIN_BYTES_MAX", "AnswerQueue", "Reply"]

JOIN_BYTES_MAX = 16 * KIB
"""Below this, joining an answer's chunks is cheaper than handing several to the transport."""


@final
class Reply:
    """The place of one answer in the queue, until it can leave."""

    __slots__ = (
        "bound",
        "chunks",
        "correlation_id",
        "counters",
        "deferred",
        "queued_bytes",
        "started_at",
        "version",
    )

    def __init__(
        self,
        bound: BoundHandler,
        version: int,
        correlation_id: int,
        counters: ApiCounters,
        started_at: float,
    ) -> None:
        self.bound = bound
        self.version = version
        self.correlation_id = correlation_id
        self.counters = counters
        self.started_at = started_at
        self.chunks: list[Buffer] | None = None
        self.queued_bytes = 0
        """Accounted for while the encoded answer waits for older ones."""
        self.deferred: Deferred[Any] | None = None


@final
class AnswerQueue:
    """See the module's head."""

    __slots__ = (
        "_outgoing",
        "_outgoing_bytes",
        "_queued_bytes",
        "_replies",
        "_services",
        "_unsent_bytes",
        "gathering",
        "kernel_is_full",
        "transport",
    )

    def __init__(self, services: Services) -> None:
        self._services = services
        self.transport: asyncio.Transport | None = None
        self.gathering = False
        """Requests are being started: what is sent now leaves together, with `flush`."""
        self.kernel_is_full = False
        """The client does not take its answers."""
        self._replies: deque[Reply] = deque()
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._queued_bytes = 0
        """Of encoded answers that wait for older ones; taken from the pool."""
        self._unsent_bytes = 0
        """Of answers that the kernel has not taken; from the pool, until it has taken them all."""

    def __len__(self) -> int:
        """How many answers are owed."""
        return len(self._replies)

    def has_room(self) -> bool:
        """Whether one more request may start: what it makes us keep is bounded (S10)."""
        return (
            len(self._replies) < REQUESTS_IN_FLIGHT_MAX
            and self._queued_bytes < REQUEST_BYTES_IN_FLIGHT_MAX
        )

    # --- in --------------------------------------------------------------------------------------

    def reserve(self, reply: Reply) -> None:
        """An answer that comes later: its place."""
        self._replies.append(reply)

    def place(self, reply: Reply) -> None:
        """An answer that came at once: behind those that are still to come."""
        if self._replies:
            self._replies.append(reply)
            self._keep(reply)
        else:
            self._send(reply)

    def answered(self, reply: Reply) -> None:
        """An answer with a place is encoded: it leaves, and those that waited for it."""
        replies = self._replies
        if replies[0] is not reply:
            self._keep(reply)
        while replies and replies[0].chunks is not None:
            self._leave(replies.popleft())

    def _keep(self, reply: Reply) -> None:
        assert reply.chunks is not None
        reply.queued_bytes = size = _own_bytes(reply.chunks)
        self._queued_bytes += size
        self._services.response_memory.take(size)

    # --- out -------------------------------------------------------------------------------------

    def _leave(self, reply: Reply) -> None:
        size = reply.queued_bytes
        if size:
            self._queued_bytes -= size
            self._services.response_memory.give(size)
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        """Small answers of one turn leave together: a pipelining client costs one system call."""
        chunks = reply.chunks
        assert chunks is not None
        counters = reply.counters
        counters.requests += 1
        counters.latency.observe(self._services.clock.monotonic() - reply.started_at)
        self._outgoing += chunks
        self._outgoing_bytes += len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
        if not self.gathering or self._outgoing_bytes > JOIN_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand everything that may leave to the transport."""
        chunks, transport = self._outgoing, self.transport
        if not chunks or transport is None:
            return
        size, self._outgoing_bytes = self._outgoing_bytes, 0
        self._outgoing = []
        self._services.telemetry.bytes_out += size
        if len(chunks) == 1:
            transport.write(chunks[0])
        elif size <= JOIN_BYTES_MAX:
            transport.write(b"".join(chunks))
        else:
            transport.writelines(chunks)
        if self.kernel_is_full:
            kept = _own_bytes(chunks)
            self._unsent_bytes += kept
            self._services.response_memory.take(kept)

    # --- ending ----------------------------------------------------------------------------------

    def give_unsent(self) -> None:
        """The kernel has taken everything, or nobody will send it any more."""
        size, self._unsent_bytes = self._unsent_bytes, 0
        if size:
            self._services.response_memory.give(size)

    def let_go(self) -> None:
        """Of every answer that has not left; whoever works on one is told."""
        services = self._services
        for reply in self._replies:
            if reply.deferred is not None and reply.chunks is None:
                services.parked.abandon(reply.deferred)
        self._replies.clear()
        queued, self._queued_bytes = self._queued_bytes, 0
        if queued:
            services.response_memory.give(queued)

    def lost(self) -> None:
        """The transport is gone, with all that it still had to send."""
        self._outgoing.clear()
        self.give_unsent()
        self.transport = None


def _own_bytes(chunks: list[Buffer]) -> int:
    """Bytes that are memory of ours; views of mapped files are the page cache's (S40)."""
    size = 0
    for chunk in chunks:
        mapped = isinstance(chunk, memoryview) and not isinstance(chunk.obj, bytes | bytearray)
        if not mapped:
            size += len(chunk)
    return size
