"""The rest of a request that took more than a slice, run slice by slice between other requests.

Its connection starts no other request meanwhile, so requests take effect in the order in which they
came (I5). It runs to its end even if the client has gone: a client that wants no answer may close
at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, final

from tidemill.core.errors import InvariantViolation
from tidemill.core.loop.deferred import Deferred
from tidemill.server.connection.listener_resources import ListenerResources
from tidemill.server.connection.receive_buffer import HeldFrame
from tidemill.server.request.handler import Progress, SlicedWork
from tidemill.wire.message import Message

__all__ = ["SlicedRequest"]


@final
class SlicedRequest:
    """One request between two of its slices; a `SliceUser`."""

    __slots__ = ("_ended", "_failed", "_frame", "_resources", "_work")

    def __init__(
        self,
        resources: ListenerResources,
        work: SlicedWork,
        frame: HeldFrame,
        *,
        ended: Callable[[Message | Deferred[Any] | None], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._resources = resources
        self._work = work
        self._frame = frame
        self._ended = ended
        self._failed = failed
        work.keep(frame.keep)
        resources.loop_slices.enqueue(self)

    def take_slice(self) -> None:
        """Run one slice, and arrange for the next one or hand over the answer."""
        answer = None
        try:
            progress = self._work.run_slice()
            if progress is Progress.DONE:
                answer = self._work.answer()
        except InvariantViolation as broken:
            self._resources.failed("request", broken)
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: our bug costs one connection
            self._fail(error)
            return
        match progress:
            case Progress.MORE:
                self._resources.loop_slices.enqueue(self)
            case Progress.AWAY:
                self._resources.supervisor.spawn("request", self._run_away())
            case Progress.DONE:
                self._frame.release()
                self._ended(answer)

    async def _run_away(self) -> None:
        try:
            await self._work.run_away()
        except (InvariantViolation, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: our bug costs one connection
            self._fail(error)
            return
        self._resources.loop_slices.enqueue(self)

    def _fail(self, error: Exception) -> None:
        self._frame.release()
        self._failed(error)
