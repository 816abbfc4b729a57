"""The answer to an acks=all request: it leaves when every partition is acknowledged or refused.

HOT PATH: one for each request with acks=all.
"""

from __future__ import annotations

from functools import partial
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import Timer
from tidemill.replication.partition import Partition
from tidemill.replication.waiting.waiters import AckWaiter
from tidemill.server.handlers.producing.produce_refusals import add_endpoints, refuse
from tidemill.server.request.context import DataContext
from tidemill.wire.generated.produce import PartitionProduceResponse, ProduceResponse

__all__ = ["PendingAcknowledgements"]


@final
class PendingAcknowledgements:
    """The partitions of one acks=all request that are not acknowledged yet, and its answer."""

    __slots__ = ("_answer", "_context", "_pending", "_refused", "_response", "_timer", "_waiters")

    def __init__(self, context: DataContext, response: ProduceResponse) -> None:
        self._context = context
        self._response = response
        self._waiters: list[AckWaiter] = []
        self._pending = 0
        """Partitions that have been neither acknowledged nor refused."""
        self._refused = False
        self._answer: Deferred[ProduceResponse] | None = None
        self._timer: Timer | None = None

    def wait(self, partition: Partition, next_offset: int, entry: PartitionProduceResponse) -> None:
        """Wait until everything below `next_offset` is acknowledged; this may be so already."""
        self._pending += 1
        settle = partial(self._settled, partition, entry)
        self._waiters.append(partition.as_leader.wait_acknowledged(next_offset, settle))

    def answer(self, timeout_ms: int) -> ProduceResponse | Deferred[ProduceResponse]:
        """The response if no partition is pending, else a deferred one with a deadline."""
        if self._pending == 0:
            return self._settled_response()
        self._answer = Deferred()
        self._timer = self._context.services.timers.add_after(
            max(0, timeout_ms) / 1000, self._time_out
        )
        return self._answer

    def _settled(
        self, partition: Partition, entry: PartitionProduceResponse, code: ErrorCode
    ) -> None:
        if code is not ErrorCode.NONE:
            refuse(self._context, entry, partition.name.topic, KafkaError(code))
            self._refused = True
        self._pending -= 1
        if self._pending == 0 and self._answer is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._answer.resolve(self._settled_response())

    def _settled_response(self) -> ProduceResponse:
        # Once, not for each refusal: it looks at every partition of the request.
        if self._refused:
            add_endpoints(self._context, self._response)
        return self._response

    def _time_out(self) -> None:
        for waiter in self._waiters:
            waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
