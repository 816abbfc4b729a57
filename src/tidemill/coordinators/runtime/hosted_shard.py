"""A shard with the partition under it, and the replies that wait for its commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, final

from tidemill.coordinators.runtime.open_batch import OpenBatch
from tidemill.coordinators.runtime.partition_writer import PartitionWriter, coordinator_error
from tidemill.coordinators.runtime.shard import Reply, Result, Shard
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import Timer

__all__ = ["CarryOut", "HostedShard", "PendingEffects", "PendingReplies", "park", "refuse_replies"]

CarryOut = Callable[[int, int, Sequence[Any]], None]
"""Carries out effects of a partition's shard, which was loaded in this leader epoch."""

S = TypeVar("S", bound=Shard)
R = TypeVar("R")


@final
class HostedShard(Generic[S]):
    """One shard and the partition under it."""

    __slots__ = (
        "acknowledged_offset",
        "appended_offset",
        "appends_before_replay",
        "epoch",
        "index",
        "is_loaded",
        "load_failures",
        "open_batch",
        "partition",
        "shard",
        "timer",
    )

    def __init__(self, index: int, partition: PartitionWriter, shard: S) -> None:
        self.index = index
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.shard = shard
        self.is_loaded = False
        self.load_failures = 0
        """Loads of the partition that failed before this one."""
        self.appends_before_replay = False
        """The last append failed: until one succeeds, records are appended before their replay."""
        self.open_batch: OpenBatch | None = None
        """Records that the shard has replayed and the log does not hold yet."""
        self.appended_offset = 0
        """The offset behind the last record in the log that the shard has replayed."""
        self.acknowledged_offset = -1
        """Everything below it is committed; updated only when a reply has waited for it."""
        self.timer: tuple[int, Timer] | None = None
        """When the runtime next looks at the deadlines, or loads again (monotonic, ms)."""


@final
class PendingReplies:
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
class PendingEffects:
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


def park(replies: list[Reply], result: Result[R], refuse: Callable[[ErrorCode], R]) -> Deferred[R]:
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
