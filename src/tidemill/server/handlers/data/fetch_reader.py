"""Reads the partitions of one fetch into the form of its answer. It neither waits nor answers.

HOT PATH: once per fetch and per partition in it.

Each partition gives whole stored batches, as views of mapped segments where their pages are in
memory (T31). Batches that must come from the disk are listed in `cold`, for `ColdRead`. Once the
answer is full, the memory for answers is used up (S40), or too much had to be copied on the event
loop (new batches that are not mapped yet), no more records are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.limits import (
    FETCH_COPY_BYTES_MAX,
    KIB,
    VIEW_FETCH_LOOK_BYTES_MAX,
    VIEW_LOOK_BYTES_MAX,
)
from tidemill.core.loop.pacing import next_turn
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.replication.partition import NO_EPOCH, Partition
from tidemill.server.fetching.fetch_sessions import FetchTarget
from tidemill.server.fetching.view_reader import ViewRead
from tidemill.server.request.authorizer import Operation
from tidemill.server.request.context import DataContext
from tidemill.server.request.leader_hints import try_leader_hint
from tidemill.server.request.partition_access import (
    PARTITIONS_PER_SLICE,
    count_refusal,
    find_partition,
)
from tidemill.storage.log.interface import LogSlice
from tidemill.wire.generated.fetch import (
    EpochEndOffset,
    FetchRequest,
    LeaderIdAndEpoch,
    PartitionData,
)

__all__ = ["FetchReader", "FetchResults"]

FetchResults = list[tuple[FetchTarget, PartitionData]]
"""What was wanted of each partition, and what it gave; in the order of the request."""

FIRST_WITH_LEADER_HINTS = 12
FIRST_WITH_TOPIC_IDS = 13
READ_COMMITTED = 1
UNKNOWN_OFFSET = -1
STARVED_BYTES_MAX = 16 * KIB
"""For one fetch while there is no memory for answers: enough for a reader that keeps up (S40)."""
HINTED_CODES = (int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH))
"""Refusals that tell the client where the leader is."""


@final
class FetchReader:
    """One fetch request's view of its partitions; each `read` starts afresh."""

    __slots__ = (
        "_context",
        "_copied_bytes",
        "_is_noted",
        "_replica_id",
        "_request",
        "_targets",
        "bytes_found",
        "cold",
        "is_starved",
        "must_answer",
        "partitions",
        "reads_views",
        "repeats_error",
        "view_until_s",
        "views",
    )

    def __init__(
        self,
        context: DataContext,
        request: FetchRequest,
        targets: Sequence[FetchTarget],
        replica_id: int,
    ) -> None:
        self._context = context
        self._request = request
        self._targets = targets
        self._replica_id = replica_id
        self._is_noted = False
        """What a follower's fetch acknowledges was noted when it arrived."""
        self._copied_bytes = 0
        """Of this turn of the loop: batches that were read into new memory."""
        self.partitions: list[Partition] = []
        """The partitions that could be read: all of them, unless there is an error."""
        self.cold: list[tuple[PartitionData, LogSlice]] = []
        """What must come from the disk, and where it goes."""
        self.views: list[ViewRead] = []
        """What must be filtered."""
        self.reads_views = False
        self.view_until_s = 0.0
        """When a fetch of views must be answered, on the monotonic clock."""
        self.bytes_found = 0
        """Counts the batches in `cold` and `views` too."""
        self.must_answer = False
        """News that cannot wait: an error, a divergence, or a new watermark for a follower."""
        self.repeats_error = False
        """An error that the session was told before: it is told again, but can wait."""
        self.is_starved = False
        """Clients have not taken their answers, and there is no memory for more (S40)."""

    def read(self) -> FetchResults:
        """Read every partition as it is now."""
        results = self._read_some(self._targets, self._begin())
        self._is_noted = True
        return results

    async def read_in_turns(self) -> FetchResults:
        """Read a slice of the partitions per turn of the loop, each as it is in its turn."""
        budget = self._begin()
        results = []
        for start in range(0, len(self._targets), PARTITIONS_PER_SLICE):
            some = self._targets[start : start + PARTITIONS_PER_SLICE]
            results += self._read_some(some, budget - self.bytes_found)
            await next_turn()
        return results

    def _begin(self) -> int:
        """Forget the last read; the bytes that this one may find."""
        self.partitions = []
        self.cold, self.views = [], []
        self.bytes_found = 0
        self.must_answer = self.repeats_error = False
        services = self._context.services
        memory = services.response_memory
        self.is_starved = memory.is_exhausted
        if self.is_starved:
            return min(self._request.max_bytes, STARVED_BYTES_MAX)
        return min(
            self._request.max_bytes, services.config.current.fetch_max_bytes, memory.free_bytes
        )

    def _read_some(self, targets: Sequence[FetchTarget], budget: int) -> FetchResults:
        results = []
        self._copied_bytes = 0
        for target in targets:
            data = PartitionData(partition_index=target.index, aborted_transactions=None)
            try:
                budget -= self._read_one(target, data, budget)
                if self._copied_bytes >= FETCH_COPY_BYTES_MAX:
                    budget = 0
            except (KafkaError, StorageFault) as error:
                self._refuse(target, data, error)
            results.append((target, data))
        return results

    def _read_one(self, target: FetchTarget, data: PartitionData, budget: int) -> int:
        """Fill `data`; the size of the batches that were found."""
        context = self._context
        if not target.topic:
            target.topic = self._topic_of(target.topic_id)
        partition = find_partition(context, Operation.READ, target.topic, target.index)
        view = None if partition.name.topic == target.topic else context.image.topic(target.topic)
        topic_id = partition.topic_id if view is None else view.topic_id
        if context.version >= FIRST_WITH_TOPIC_IDS and topic_id != target.topic_id:
            # The topic was deleted and created again since the session learnt its id (I34).
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if self._replica_id >= 0:
            partition.check_serves_followers()
        else:
            partition.check_leader()
        partition.check_epoch(target.current_leader_epoch)
        self.partitions.append(partition)
        data.log_start_offset = partition.log.log_start_offset
        # A position counts only in a log that agrees with ours, so epochs are compared first.
        diverges = target.last_fetched_epoch != NO_EPOCH and self._diverges(partition, target, data)
        end_offset = 0 if diverges else self._end_offset(partition, target)
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset()
        if diverges:
            return 0
        is_first = self.bytes_found == 0 and not self.is_starved
        max_bytes = min(target.max_bytes, budget)
        if max_bytes <= 0 and not is_first:
            return 0
        if view is not None:
            return self._look(view, partition, target, data, end_offset, max_bytes)
        found = partition.read(
            target.fetch_offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=is_first
        )
        self._take(data, found)
        return found.size_bytes

    def _look(
        self,
        view: TopicImage,
        partition: Partition,
        target: FetchTarget,
        data: PartitionData,
        end_offset: int,
        max_bytes: int,
    ) -> int:
        """Note what the answer of a view is made of; the most that it is expected to have."""
        self.reads_views = True
        if len(self.views) * VIEW_LOOK_BYTES_MAX >= VIEW_FETCH_LOOK_BYTES_MAX:
            return 0
        found = self._context.services.views.try_read(
            view,
            partition,
            data,
            fetch_offset=target.fetch_offset,
            end_offset=end_offset,
            bytes_max=max_bytes,
        )
        if found is None:
            return 0
        self.views.append(found)
        self.bytes_found += found.size_bytes
        return found.size_bytes

    def found_only_quiet_views(self) -> bool:
        """Whether nothing that was read, once it is filtered, is worth an answer."""
        if self.must_answer or self.cold:
            return False
        looked_bytes = sum(view.size_bytes for view in self.views)
        return looked_bytes == self.bytes_found and all(view.is_quiet for view in self.views)

    def _topic_of(self, topic_id: UUID) -> str:
        name = self._context.image.names.get(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name

    def _end_offset(self, partition: Partition, target: FetchTarget) -> int:
        """Where the reader must stop; a follower's fetch also acknowledges what it has."""
        if self._replica_id >= 0:
            if not self._is_noted:
                self._note_position(partition, target)
            if target.known_high_watermark < partition.high_watermark:
                self.must_answer = True  # the follower learns the new watermark at once (KIP-1166)
            return partition.log.log_end_offset
        if self._request.isolation_level == READ_COMMITTED:
            return partition.last_stable_offset()
        return partition.high_watermark

    def _note_position(self, partition: Partition, target: FetchTarget) -> None:
        if target.current_leader_epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "a replica must name its epoch")
        partition.follower_fetched(
            self._replica_id,
            fetch_offset=target.fetch_offset,
            flushed_offset=target.flushed_offset,
            now=self._context.services.clock.monotonic(),
        )

    def _diverges(self, partition: Partition, target: FetchTarget, data: PartitionData) -> bool:
        """The reader's last epoch ended earlier here: it must cut its tail first (KIP-595)."""
        last_epoch, log = target.last_fetched_epoch, partition.log
        epoch, end_offset = partition.end_offset_of_epoch(last_epoch)
        if epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nobody has led in epoch {last_epoch}")
        if target.fetch_offset < log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "before the log start")
        if self._replica_id >= 0 and last_epoch < log.epochs.oldest:
            # What it holds up to our first entry is deleted here, or was never committed. A
            # consumer only goes on from there; a replica must not keep it.
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "the replica holds nothing of ours")
        if epoch == last_epoch and end_offset >= target.fetch_offset:
            return False
        data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
        self.must_answer = True
        return True

    def _take(self, data: PartitionData, found: LogSlice) -> None:
        self.bytes_found += found.size_bytes
        if found.load is not None:
            self.cold.append((data, found))
        elif len(found.chunks) == 1:
            data.records = chunk = found.chunks[0]
            if isinstance(chunk, bytes):
                self._copied_bytes += found.size_bytes
        elif found.chunks:
            data.records = b"".join(found.chunks)

    def _refuse(
        self, target: FetchTarget, data: PartitionData, error: KafkaError | StorageFault
    ) -> None:
        context = self._context
        data.error_code = code = count_refusal(context, error)
        if code == target.told_error_code:
            self.repeats_error = True
        else:
            self.must_answer = True
        data.high_watermark = data.last_stable_offset = UNKNOWN_OFFSET
        if code in HINTED_CODES and context.version >= FIRST_WITH_LEADER_HINTS:
            data.current_leader = try_leader_hint(
                context, target.topic, target.index, LeaderIdAndEpoch, code=code
            )
