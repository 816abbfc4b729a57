"""One shard as the runtime keeps it, and the answers that wait until its records are committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

from tidemill.coordinators.runtime.open_batch import OpenBatch
from tidemill.coordinators.runtime.partition_writer import PartitionWriter, meaning_of
from tidemill.coordinators.runtime.shard import Parked, Reply, Result, Shard
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import Timer

__all__ = ["Commit", "Hosted", "park", "refuse_replies"]

S = TypeVar("S", bound=Shard)
R = TypeVar("R")


@final
class Hosted(Generic[S]):
    """One shard and the partition under it."""

    __slots__ = (
        "acknowledged_offset",
        "appended_offset",
        "epoch",
        "index",
        "is_loaded",
        "is_wary",
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
        self.is_wary = False
        """The last append failed: until one succeeds, the log knows everything first."""
        self.open_batch: OpenBatch | None = None
        """What the shard knows and the log does not; appended when the turn ends."""
        self.appended_offset = 0
        """Behind the last record of the log that the shard knows."""
        self.acknowledged_offset = -1
        """All below it is committed, as far as somebody asked."""
        self.timer: tuple[int, Timer] | None = None
        """When we look at the shard's deadlines next (monotonic, ms)."""


@final
class Commit:
    """Answers that leave when all below an offset is committed."""

    __slots__ = ("_hosted", "_offset", "_replies", "is_settled", "timer")

    def __init__(self, hosted: Hosted[Any], replies: list[Reply], offset: int) -> None:
        self._hosted = hosted
        self._offset = offset
        self._replies = replies
        self.is_settled = False
        self.timer: Timer | None = None

    def settle(self, code: ErrorCode) -> None:
        self.is_settled = True
        if self.timer is not None:
            self.timer.cancel()
        if code is not ErrorCode.NONE:
            refuse_replies(self._replies, meaning_of(code))
            return
        hosted = self._hosted
        if hosted.acknowledged_offset < self._offset:
            hosted.acknowledged_offset = self._offset
        for parked, response in self._replies:
            parked.answer.resolve(response)


def park(replies: list[Reply], result: Result[R], refuse: Callable[[ErrorCode], R]) -> Deferred[R]:
    """Put the result's answers to those that wait; the caller's own."""
    if result.replies:
        replies += result.replies
    response = result.response
    if isinstance(response, Parked):
        return response.answer
    caller = Parked(refuse)
    replies.append((caller, response))
    return caller.answer


def refuse_replies(replies: list[Reply], code: ErrorCode) -> None:
    for parked, _ in replies:
        parked.answer.resolve(parked.refuse(code))
