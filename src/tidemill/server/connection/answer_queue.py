"""The answers that one connection owes: sent in order, with few system calls, memory accounted.

HOT PATH: `place` and `_send` run once per request, `flush` once per turn.

No answer overtakes an older one (T8). An answer that is ready before older ones waits here in
encoded form; bytes that the kernel does not accept wait in the transport. Both count against the
broker's pool for answers (S40), except views of mapped files: these belong to the page cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, final

from tidemill.core.limits import KIB, REQUEST_BYTES_IN_FLIGHT_MAX, REQUESTS_IN_FLIGHT_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.core.telemetry import ApiCounters
from tidemill.server.request.dispatch import BoundHandler
from tidemill.server.request.services import Services
from tidemill.wire.primitives import Buffer

__all__ = ["JOIN_BYTES_MAX", "AnswerQueue", "AnswerSlot"]

JOIN_BYTES_MAX: Final = 16 * KIB
"""Below this, joining an answer's chunks is cheaper than handing several to the transport."""


@final
class AnswerSlot:
    """The place of one answer in the queue, from its request until it is sent."""

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
        """Taken from the pool while the encoded answer waits for older ones."""
        self.deferred: Deferred[Any] | None = None


@final
class AnswerQueue:
    """The slots of one connection, oldest first, and the bytes that leave with the next flush."""

    __slots__ = (
        "_outgoing",
        "_outgoing_bytes",
        "_queued_bytes",
        "_services",
        "_slots",
        "_unsent_bytes",
        "gathering",
        "kernel_is_full",
        "transport",
    )

    def __init__(self, services: Services) -> None:
        self._services = services
        self.transport: asyncio.Transport | None = None
        self.gathering = False
        """Requests are being started: their answers leave together, with `flush`."""
        self.kernel_is_full = False
        """The client does not read its answers."""
        self._slots: deque[AnswerSlot] = deque()
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._queued_bytes = 0
        """Bytes of encoded answers that wait for older ones; taken from the pool."""
        self._unsent_bytes = 0
        """Bytes not accepted by the kernel; held in the pool until it has accepted all of them."""

    def __len__(self) -> int:
        """How many answers are owed."""
        return len(self._slots)

    def has_room(self) -> bool:
        """Whether one more request may start: the answers kept for a client are bounded (S10)."""
        return (
            len(self._slots) < REQUESTS_IN_FLIGHT_MAX
            and self._queued_bytes < REQUEST_BYTES_IN_FLIGHT_MAX
        )

    # --- in --------------------------------------------------------------------------------------

    def reserve(self, slot: AnswerSlot) -> None:
        """Keep the place of an answer that comes later."""
        self._slots.append(slot)

    def withdraw(self, slot: AnswerSlot) -> None:
        """The newest request gets no answer after all (Produce with acks=0)."""
        assert self._slots[-1] is slot
        self._slots.pop()
        slot.counters.requests += 1

    def place(self, slot: AnswerSlot) -> None:
        """Send an answer that is ready, or queue it behind older ones that are not."""
        if self._slots:
            self._slots.append(slot)
            self._keep(slot)
        else:
            self._send(slot)

    def complete(self, slot: AnswerSlot) -> None:
        """A reserved slot has its answer: send it, and in order those that waited for it."""
        slots = self._slots
        if slots[0] is not slot:
            self._keep(slot)
        while slots and slots[0].chunks is not None:
            self._dequeue(slots.popleft())

    def _keep(self, slot: AnswerSlot) -> None:
        assert slot.chunks is not None
        slot.queued_bytes = size = _own_bytes(slot.chunks)
        self._queued_bytes += size
        self._services.response_memory.take(size)

    # --- out -------------------------------------------------------------------------------------

    def _dequeue(self, slot: AnswerSlot) -> None:
        size = slot.queued_bytes
        if size:
            self._queued_bytes -= size
            self._services.response_memory.give(size)
        self._send(slot)

    def _send(self, slot: AnswerSlot) -> None:
        """Collect small answers of one turn: a pipelining client then costs one system call."""
        chunks = slot.chunks
        assert chunks is not None
        counters = slot.counters
        counters.requests += 1
        counters.latency.observe(self._services.clock.monotonic() - slot.started_at)
        self._outgoing += chunks
        self._outgoing_bytes += len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
        if not self.gathering or self._outgoing_bytes > JOIN_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand the collected answers to the transport."""
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
        """The kernel has accepted all unsent bytes, or they will never be sent."""
        size, self._unsent_bytes = self._unsent_bytes, 0
        if size:
            self._services.response_memory.give(size)

    def drop(self) -> None:
        """Drop every answer that was not sent, and abandon the parked fetches behind them."""
        services = self._services
        for slot in self._slots:
            if slot.deferred is not None and slot.chunks is None:
                services.parked.abandon(slot.deferred)
        self._slots.clear()
        queued, self._queued_bytes = self._queued_bytes, 0
        if queued:
            services.response_memory.give(queued)

    def transport_lost(self) -> None:
        """The transport is gone, with its unsent bytes."""
        self._outgoing.clear()
        self.give_unsent()
        self.transport = None


def _own_bytes(chunks: list[Buffer]) -> int:
    """Bytes in our own memory; views of mapped files belong to the page cache (S40)."""
    size = 0
    for chunk in chunks:
        is_mapped = isinstance(chunk, memoryview) and not isinstance(chunk.obj, bytes | bytearray)
        if not is_mapped:
            size += len(chunk)
    return size
