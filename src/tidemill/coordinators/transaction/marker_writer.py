"""Writes markers to the partitions that this broker leads, and says when they are acknowledged.

A marker in `__consumer_offsets` goes through the group coordinator's runtime, because it decides
which offsets its shard shows. Every other partition gets its marker directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

from tidemill.coordinators.runtime.partition_writer import MarkedLog, Marker
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC

__all__ = ["MarkerWriter", "OffsetsMarker"]

ACKNOWLEDGEMENT_S_MAX = 5.0
"""After that it is not known whether the marker is acknowledged; it is written again."""


class OffsetsMarker(Protocol):
    """The group coordinator, as far as markers concern it."""

    def append_marker(self, index: int, marker: Marker) -> int: ...


@final
class MarkerWriter:
    """The door to all partitions of this broker, for markers."""

    def __init__(
        self,
        find: Callable[[TopicPartition], MarkedLog | None],
        offsets: OffsetsMarker,
        *,
        clock: Clock,
        timers: LoopTimers,
    ) -> None:
        self._find = find
        self._offsets = offsets
        self._clock = clock
        self._timers = timers

    def write(self, marker: Marker, name: TopicPartition) -> ErrorCode | Deferred[ErrorCode]:
        """NONE once the marker is acknowledged with acks=all; else why it may not be there."""
        log = self._find(name)
        if log is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            next_offset = self._append(log, marker, name)
        except KafkaError as error:
            return error.code
        except StorageFault:
            return ErrorCode.KAFKA_STORAGE_ERROR
        answer: Deferred[ErrorCode] = Deferred()
        waiter = log.wait_acknowledged(next_offset, answer.resolve)
        if not waiter.settled:
            timer = self._timers.add_after(
                ACKNOWLEDGEMENT_S_MAX, lambda: waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
            )
            return _ending(answer, timer.cancel)
        return answer

    def _append(self, log: MarkedLog, marker: Marker, name: TopicPartition) -> int:
        if name.topic == OFFSETS_TOPIC:
            return self._offsets.append_marker(name.partition, marker)
        producer_id, epoch = marker.producer
        return log.append_marker(
            producer_id,
            epoch,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=self._clock.wall_ms(),
            is_bumped=marker.is_bumped,
        ).next_offset


def _ending(answer: Deferred[ErrorCode], stop: Callable[[], None]) -> Deferred[ErrorCode]:
    """The same answer, which also stops the timer that would end the wait."""
    heard: Deferred[ErrorCode] = Deferred()

    def settle(code: ErrorCode) -> None:
        stop()
        heard.resolve(code)

    answer.then(settle)
    return heard
