"""Lets answers leave, and effects be carried out, once what they are based on is committed.

While a shard has an open batch, answers and effects wait with it; the end of the turn brings them
here, with the offset behind the batch. Without one, an answer leaves at once if everything that
the shard has replayed is known to be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

from tidemill.coordinators.runtime.hosted_shard import HostedShard
from tidemill.coordinators.runtime.partition_writer import coordinator_error
from tidemill.coordinators.runtime.shard import Reply, Result
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers, Timer

__all__ = ["CarryOut", "CommittedAnswers", "refuse_replies"]

CarryOut = Callable[[int, int, Sequence[Any]], None]
"""Carries out effects of a partition's shard, which was loaded in this leader epoch."""

R = TypeVar("R")


@final
class CommittedAnswers:
    """The answers and effects of all shards of one coordinator."""

    def __init__(self, timers: LoopTimers, *, commit_timeout_s: float, carry_out: CarryOut) -> None:
        self._timers = timers
        self.commit_timeout_s = commit_timeout_s
        """After that an answer leaves as REQUEST_TIMED_OUT."""
        self._carry_out = carry_out

    def answer(
        self, hosted: HostedShard[Any], result: Result[R], refuse: Callable[[ErrorCode], R]
    ) -> R | Deferred[R]:
        """The result's response, now or later; its replies to parked requests go with it."""
        batch = hosted.open_batch
        if batch is not None:
            return _park(batch.replies, result, refuse)
        if hosted.acknowledged_offset < hosted.appended_offset:
            replies: list[Reply] = []
            answer = _park(replies, result, refuse)
            self.answer_when_committed(hosted, replies, hosted.appended_offset)
            return answer
        for parked, reply in result.replies:
            parked.resolve(reply)
        return result.response

    def answer_when_committed(
        self, hosted: HostedShard[Any], replies: list[Reply], offset: int
    ) -> None:
        """Send the replies when everything below the offset is committed."""
        pending = _PendingReplies(hosted, replies, offset)
        waiter = hosted.partition.as_leader.wait_acknowledged(offset, pending.settle)
        if not waiter.settled:
            pending.timer = self._timers.add_after(
                self.commit_timeout_s, lambda: waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
            )

    def plan_effects(self, hosted: HostedShard[Any], effects: Sequence[Any]) -> None:
        """Have effects carried out when everything that the shard knows is committed."""
        if hosted.open_batch is not None:
            hosted.open_batch.effects += effects
        else:
            self.carry_out_when_committed(hosted, effects, hosted.appended_offset)

    def carry_out_when_committed(
        self, hosted: HostedShard[Any], effects: Sequence[Any], offset: int
    ) -> None:
        """Carry the effects out when everything below the offset is committed."""
        pending = _PendingEffects(hosted, effects, self._carry_out)
        hosted.partition.as_leader.wait_acknowledged(offset, pending.settle)


@final
class _PendingReplies:
    """Replies that leave once everything below an offset is committed.

    `settle` is the callback for the partition's own waiter, which calls it exactly once.
    """

    __slots__ = ("_hosted", "_offset", "_replies", "timer")

    def __init__(self, hosted: HostedShard[Any], replies: list[Reply], offset: int) -> None:
        self._hosted = hosted
        self._offset = offset
        self._replies = replies
        self.timer: Timer | None = None

    def settle(self, code: ErrorCode) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if code is not ErrorCode.NONE:
            refuse_replies(self._replies, coordinator_error(code))
            return
        hosted = self._hosted
        if hosted.acknowledged_offset < self._offset:
            hosted.acknowledged_offset = self._offset
        for parked, response in self._replies:
            parked.resolve(response)


@final
class _PendingEffects:
    """Effects that are carried out once everything below an offset is committed.

    They wait without a deadline: the outcome of an append that takes long is not known yet. If the
    broker loses the partition first, its successor finds in the log what is to be done.
    """

    __slots__ = ("_carry_out", "_effects", "_hosted")

    def __init__(
        self, hosted: HostedShard[Any], effects: Sequence[Any], carry_out: CarryOut
    ) -> None:
        self._hosted = hosted
        self._effects = effects
        self._carry_out = carry_out

    def settle(self, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self._carry_out(self._hosted.index, self._hosted.epoch, self._effects)


def _park(replies: list[Reply], result: Result[R], refuse: Callable[[ErrorCode], R]) -> Deferred[R]:
    """Add the result's replies, the caller's own included, to `replies`; the caller's answer."""
    if result.replies:
        replies += result.replies
    response = result.response
    if isinstance(response, Deferred):
        return response
    caller = Deferred(refuse)
    replies.append((caller, response))
    return caller


def refuse_replies(replies: list[Reply], code: ErrorCode) -> None:
    for parked, _ in replies:
        parked.refuse(code)
