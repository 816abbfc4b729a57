"""A request in several steps, in a task of its own: it waits for the store, replicas, or a turn.

Its connection starts no other request meanwhile, so requests take effect in the order in which they
came (I5). What it was decoded to counts as memory for requests until it has ended. It begins when
few others run and there is memory for its answer (S11), unless the client has gone by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, final

from tidemill.core.errors import InvariantViolation
from tidemill.core.limits import REQUEST_OBJECTS_MAX
from tidemill.server.connection.listener_resources import ListenerResources
from tidemill.wire.message import Message

__all__ = ["SlowRequest"]

DECODED_GROWTH: Final = 16
"""A decoded request takes at most so many times its bytes: objects for numbers and short names."""
DECODED_BYTES_MAX: Final = REQUEST_OBJECTS_MAX * 160
"""What the objects of the largest request take."""


@final
class SlowRequest:
    """One request whose handler is a coroutine."""

    __slots__ = ("_decoded_bytes", "_ended", "_failed", "_is_wanted", "_resources", "_work")

    def __init__(
        self,
        resources: ListenerResources,
        work: Coroutine[Any, Any, Message],
        *,
        frame_bytes: int,
        is_metadata: bool,
        is_wanted: Callable[[], bool],
        ended: Callable[[Message], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._resources = resources
        self._work = work
        self._decoded_bytes = min(DECODED_GROWTH * frame_bytes, DECODED_BYTES_MAX)
        self._is_wanted = is_wanted
        self._ended = ended
        self._failed = failed
        running = resources.metadata_requests if is_metadata else resources.slow_requests
        resources.request_memory.take(self._decoded_bytes)
        resources.supervisor.spawn("request", self._run(running))

    async def _run(self, running: asyncio.Semaphore) -> None:
        try:
            async with running:
                await self._resources.wait_response_memory()
                if not self._is_wanted():
                    return
                response = await self._work
        except (InvariantViolation, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: our bug costs one connection
            self._failed(error)
            return
        finally:
            self._work.close()
            self._resources.request_memory.give(self._decoded_bytes)
        self._ended(response)
