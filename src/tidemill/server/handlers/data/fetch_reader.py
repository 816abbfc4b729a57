"""Reads the partitions of one fetch into the form of its answer. It neither waits nor answers.

HOT PATH: once per fetch and per partition in it.

Each partition gives whole stored batches, as views of mapped segments where their pages are in
memory (T31). Batches that must come from the disk are listed in `cold`, for `ColdRead`. A reader of
committed records is also told the aborted transactions in what it gets (T34). Once the
answer is full, the memory for answers is used up (S40), or too much had to be copied on the event
loop (new batches that are not mapped yet), no more records are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.limits import FETCH_COPY_BYTES_MAX, KIB
from tidemill.core.loop.pacing import next_turn
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.replication.partition import NO_EPOCH, Partition
from tidemill.server.fetching.aborted_search import AbortedSearch, listed
from tidemill.server.fetching.fetch_sessions import FetchTarget
from tidemill.server.fetching.near_replicas import NearReplicas
from tidemill.server.fetching.view_reader import ViewRead
from tidemill.server.handlers.data.cold_reads import ColdSlice
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

FIRST_WITH_LEADER_HINTS: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13
READ_COMMITTED: Final = 1
UNKNOWN_OFFSET: Final = -1
STARVED_BYTES_MAX: Final = 16 * KIB
"""For one fetch while there is no memory for answers: enough for a reader that keeps up (S40)."""
HINTED_CODES: Final = (int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH))
"""Refusals that tell the client where the leader is."""


@final
class FetchReader:
    """One fetch request's view of its partitions; each `read` starts afresh."""

    __slots__ = (
        "_context",
        "_copied_bytes",
        "_leaves_views",
        "_looked_bytes",
        "_near",
        "_request",
        "_targets",
        "bytes_found",
        "cold",
        "is_starved",
        "must_answer",
        "partitions",
        "reads_committed",
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
    ) -> None:
        self._context = context
        self._request = request
        self._targets = targets
        self._near: NearReplicas | None = None
        """For a client that names its rack, and so says that it reads from any replica."""
        if request.rack_id:
            self._near = NearReplicas(context.services, request.rack_id)
        self._copied_bytes = 0
        """Of this turn of the loop: batches that were read into new memory."""
        self._looked_bytes = 0
        """Stored bytes that are to be filtered."""
        self._leaves_views = False
        """A partition of a view has more, but this fetch looks at enough already."""
        self.partitions: list[Partition] = []
        """The partitions that could be read: all of them, unless there is an error."""
        self.reads_committed = request.isolation_level == READ_COMMITTED
        """It reads up to the last stable offset, and is told what was aborted below."""
        self.cold: list[ColdSlice] = []
        """What must come from the disk, and where it goes."""
        self.views: list[ViewRead] = []
        """What must be filtered."""
        self.reads_views = False
        self.view_until_s = 0.0
        """When a fetch of views must be answered, on the monotonic clock."""
        self.bytes_found = 0
        """Counts the batches in `cold` and `views` too."""
        self.must_answer = False
        """News that cannot wait: an error or a divergence."""
        self.repeats_error = False
        """An error that the session was told before: it is told again, but can wait."""
        self.is_starved = False
        """Clients have not taken their answers, and there is no memory for more (S40)."""

    def read(self) -> FetchResults:
        """Read every partition as it is now."""
        return self._read_some(self._targets, self._begin())

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
        self.bytes_found = self._looked_bytes = 0
        self._leaves_views = False
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
        if self._near is None:
            partition.check_leader()
        else:
            self._near.check_readable(partition)
        partition.check_epoch(target.current_leader_epoch)
        self.partitions.append(partition)
        data.log_start_offset = partition.log.log_start_offset
        diverges = target.last_fetched_epoch != NO_EPOCH and self._diverges(partition, target, data)
        end_offset = self._end_offset(partition)
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset()
        if diverges:
            return 0
        if self._near is not None and self._sends_on(partition, target, data):
            return 0
        is_first = self.bytes_found == 0 and not self.is_starved
        max_bytes = min(target.max_bytes, budget)
        if max_bytes <= 0 and not is_first:
            return 0
        if view is not None or target.fetch_offset <= partition.log.producers.last_veiled_offset:
            return self._look(view, partition, target, data, end_offset, max_bytes)
        found = partition.read(
            target.fetch_offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=is_first
        )
        self._take(data, found, partition, target.fetch_offset)
        if not partition.is_leader:
            context.services.telemetry.follower_read_bytes += found.size_bytes
        return found.size_bytes

    def _sends_on(self, partition: Partition, target: FetchTarget, data: PartitionData) -> bool:
        """Whether the reader is sent to a replica that is nearer to it."""
        near = self._near
        chosen = near and near.try_choose(partition, target.fetch_offset)
        if chosen is None:
            return False
        data.preferred_read_replica = chosen
        self._context.services.telemetry.readers_sent_on += 1
        self.must_answer = True
        return True

    def _look(
        self,
        view: TopicImage | None,
        partition: Partition,
        target: FetchTarget,
        data: PartitionData,
        end_offset: int,
        max_bytes: int,
    ) -> int:
        """Note what is to be filtered for the answer; the most that it is expected to have."""
        self.reads_views = True
        if self.reads_committed:
            data.aborted_transactions = []
        views = self._context.services.views
        if not views.may_look_on(len(self.views), self._looked_bytes):
            self._leaves_views = self._leaves_views or target.fetch_offset < end_offset
            return 0
        found = views.try_read(
            view,
            partition,
            data,
            fetch_offset=target.fetch_offset,
            end_offset=end_offset,
            bytes_max=max_bytes,
            reads_committed=self.reads_committed,
        )
        if found is None:
            return 0
        self.views.append(found)
        self._looked_bytes += found.looked_bytes
        self.bytes_found += found.size_bytes
        return found.size_bytes

    def ends(self) -> list[int]:
        """Where the reader must stop now, by partition."""
        return [self._end_offset(partition) for partition in self.partitions]

    def found_only_quiet_views(self) -> bool:
        """Whether nothing that was read, once it is filtered, is worth an answer."""
        if self.must_answer or self.cold or self._leaves_views:
            return False
        looked_bytes = sum(view.size_bytes for view in self.views)
        return looked_bytes == self.bytes_found and all(view.is_quiet for view in self.views)

    def _topic_of(self, topic_id: UUID) -> str:
        name = self._context.image.names.get(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name

    def _end_offset(self, partition: Partition) -> int:
        """Where the reader must stop."""
        return partition.last_stable_offset() if self.reads_committed else partition.high_watermark

    def _diverges(self, partition: Partition, target: FetchTarget, data: PartitionData) -> bool:
        """The reader's last epoch ended earlier here: it has read what is gone (KIP-320)."""
        found = partition.try_find_divergence(target.last_fetched_epoch, target.fetch_offset)
        if found is None:
            return False
        data.diverging_epoch = EpochEndOffset(epoch=found[0], end_offset=found[1])
        self.must_answer = True
        return True

    def _take(
        self, data: PartitionData, found: LogSlice, partition: Partition, fetch_offset: int
    ) -> None:
        self.bytes_found += found.size_bytes
        search: AbortedSearch | None = None
        if self.reads_committed:
            search = AbortedSearch(partition.log, fetch_offset)
            aborted = search.try_find(found)
            data.aborted_transactions = listed(aborted or ())
            if aborted is not None:
                search = None
        if found.load is not None or search is not None:
            self.cold.append(ColdSlice(data, found, search))
        if found.load is not None:
            return
        if len(found.chunks) == 1:
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
