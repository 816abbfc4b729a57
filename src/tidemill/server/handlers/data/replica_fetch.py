"""Fetch (1) of a follower: acknowledges what it has, and is told what has changed (ADR 0012).

HOT PATH: once per fetch, and per partition that has changed; never per partition of the session.

A follower names the partitions whose position has changed, and only these are looked at. What it
names it acknowledges, once, when the fetch arrives: a fetch that waits and is answered later says
nothing new, and its sender may have restarted since. The session (`replica_session.py`) knows what
is to be told. If there is nothing, the fetch waits:

| while it waits                          | it is answered                                   |
|-----------------------------------------|--------------------------------------------------|
| records are appended, a role changes    | in the same turn of the loop                     |
| a mark or a log start moves             | after `MARKS_WAIT_S`, with records if they come  |
| a newer fetch of the session comes      | at once, with nothing                            |
| its time is up                          | with nothing                                     |

A partition that is refused, or whose log went another way, leaves the session. The follower puts
that right and names it again.
"""

from __future__ import annotations

import math
from typing import Final, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.limits import FETCH_COPY_BYTES_MAX, KIB
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import Timer
from tidemill.replication.partition import NO_EPOCH, Partition
from tidemill.replication.serving.replica_session import ReplicaSession, ReplicaSlot, SlotKey
from tidemill.replication.serving.replica_sessions import CATCH_UP_LANE
from tidemill.server.handlers.data.cold_reads import ColdRead, ColdSlice
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer
from tidemill.server.request.partition_access import count_refusal
from tidemill.storage.log.interface import LogSlice
from tidemill.wire.generated.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

__all__ = ["handle_replica"]

NO_SESSION: Final = 0
UNKNOWN_OFFSET: Final = -1
MARKS_WAIT_S: Final = 0.005
"""How long a moved mark waits for records: alone it costs an answer and a fetch (KAFKA-9731)."""
SLOTS_PER_ANSWER_MAX: Final = 500
"""Partitions that one answer tells of: some milliseconds."""
STARVED_BYTES_MAX: Final = 16 * KIB
"""For one answer while there is no memory for answers (S40)."""


def handle_replica(context: DataContext, request: FetchRequest) -> Answer:
    context.require_broker()
    state = request.replica_state
    broker_id = request.replica_id if state is None else state.replica_id
    broker_epoch = NO_EPOCH if state is None else state.replica_epoch
    services = context.services
    services.replicas.broker_epochs.check(broker_id, broker_epoch)
    sessions = services.replica_sessions
    if request.session_id == NO_SESSION:
        session = sessions.open(
            context.peer, broker_id=broker_id, broker_epoch=broker_epoch, lane=request.replica_lane
        )
    else:
        session = sessions.find(
            context.peer, request.session_id, broker_id=broker_id, broker_epoch=broker_epoch
        )
    fetch = _ReplicaFetch(context, request, session)
    fetch.take_in()
    return fetch.answer_or_wait()


@final
class _ReplicaFetch:
    """One fetch of a follower, from its arrival to its answer."""

    __slots__ = (
        "_cold",
        "_context",
        "_found_bytes",
        "_marks_timer",
        "_number",
        "_request",
        "_session",
        "_topics",
    )

    def __init__(
        self, context: DataContext, request: FetchRequest, session: ReplicaSession
    ) -> None:
        self._context = context
        self._request = request
        self._session = session
        self._topics: dict[UUID, FetchableTopicResponse] = {}
        """What the answer tells so far."""
        self._cold: list[ColdSlice] = []
        self._found_bytes = 0
        self._marks_timer: Timer | None = None
        self._number = 0
        """Which fetch of the session this is, and so which answer."""

    # --- arrival ---------------------------------------------------------------------------------

    def take_in(self) -> None:
        """Note what the follower says of each partition that it names."""
        session, request = self._session, self._request
        session.newest_fetch = self
        session.fetches += 1
        self._number = session.fetches
        session.marks_came = None
        session.wake()  # a fetch before this one need not wait any more
        for gone in request.forgotten_topics_data:
            for index in gone.partitions:
                session.forget((gone.topic_id, index))
        if request.replica_vouches:
            session.vouch.confirmed(request.session_epoch)
        now = self._context.services.clock.monotonic()
        for topic in request.topics:
            for wanted in topic.partitions:
                self._take_in_one((topic.topic_id, wanted.partition), wanted, now)

    def _take_in_one(self, key: SlotKey, wanted: FetchPartition, now: float) -> None:
        data = PartitionData(partition_index=key[1], aborted_transactions=None)
        session = self._session
        try:
            partition = self._find(key)
            if session.is_overtaken(partition, wanted.current_leader_epoch, wanted.fetch_offset):
                session.forget(key)
                return
            if self._try_note(partition, wanted, data, now):
                session.slot(key, partition).named(
                    leader_epoch=wanted.current_leader_epoch,
                    fetch_offset=wanted.fetch_offset,
                    max_bytes=wanted.partition_max_bytes,
                    seen=self._request.session_epoch,
                )
                return
        except (KafkaError, StorageFault) as error:
            self._refuse(data, error)
        session.forget(key)
        self._tell(key[0], data)

    def _find(self, key: SlotKey) -> Partition:
        context = self._context
        name = context.image.names.get(key[0])
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = context.services.replicas.find(name, key[1])
        if partition is None:
            raise context.missing_partition(name, key[1])
        if partition.topic_id != key[0]:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return partition

    def _try_note(
        self, partition: Partition, wanted: FetchPartition, data: PartitionData, now: float
    ) -> bool:
        """Note the follower's position; False if it must cut its log first."""
        partition.check_serves_followers()
        if wanted.current_leader_epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "a replica must name its epoch")
        partition.check_epoch(wanted.current_leader_epoch)
        data.log_start_offset = partition.log.log_start_offset
        # A position counts only in a log that agrees with ours, so epochs are compared first.
        if wanted.last_fetched_epoch != NO_EPOCH and _diverges(partition, wanted, data):
            return False
        partition.follower_fetched(
            self._session.broker_id,
            fetch_offset=wanted.fetch_offset,
            flushed_offset=wanted.flushed_offset,
            log_start_offset=wanted.log_start_offset,
            now=now,
        )
        return True

    # --- waiting ---------------------------------------------------------------------------------

    def answer_or_wait(self) -> Answer:
        session, request, services = self._session, self._request, self._context.services
        if self._topics or session.has_news or request.max_wait_ms <= 0:
            return self.answer()
        session.marks_came = self._arm_marks
        parked = services.parked.try_park(
            [session.watchers],
            wait_ms=request.max_wait_ms,
            is_ready=self._is_ready,
            finish=self.answer,
        )
        if parked is None:
            return self.answer()
        if session.has_marks:
            self._arm_marks()
        return parked

    def _is_ready(self) -> bool:
        return self._session.has_news or self._session.newest_fetch is not self

    def _arm_marks(self) -> None:
        if self._marks_timer is None:
            timers = self._context.services.timers
            self._marks_timer = timers.add_exactly_after(MARKS_WAIT_S, self._marks_due)

    def _marks_due(self) -> None:
        self._session.marks_are_due = True
        self._session.wake()

    # --- answering -------------------------------------------------------------------------------

    def answer(self) -> FetchResponse | Deferred[FetchResponse]:
        """Tell what is new, now or once what is cold has been read."""
        session = self._session
        if self._marks_timer is not None:
            self._marks_timer.cancel()
            self._marks_timer = None
        if self._request.replica_vouches:
            session.vouch.answered(self._number, self._context.services.clock.boottime())
        if session.newest_fetch is self:
            session.marks_came = None
            self._tell_news()
        if not self._cold:
            return self._response()
        later: Deferred[FetchResponse] = Deferred()
        cold = ColdRead(self._context, self._cold)
        self._context.services.supervisor.spawn("cold read", self._load_and_answer(cold, later))
        return later

    async def _load_and_answer(self, cold: ColdRead, later: Deferred[FetchResponse]) -> None:
        await cold.run()
        later.resolve(self._response())

    def _response(self) -> FetchResponse:
        return FetchResponse(
            session_id=self._session.session_id,
            throttle_time_ms=self._throttle_ms(),
            responses=list(self._topics.values()),
        )

    def _throttle_ms(self) -> int:
        """How long the follower should wait before it asks for more: only if it is far behind."""
        if self._session.lane != CATCH_UP_LANE or not self._found_bytes:
            return 0
        services = self._context.services
        wait_s = services.catch_up_rate.take(self._found_bytes, services.clock.monotonic())
        return math.ceil(1000 * wait_s)

    def _tell_news(self) -> None:
        """Tell of slots until the answer is full; the others stay for the next one."""
        memory = self._context.services.response_memory
        budget = min(self._request.max_bytes, max(memory.free_bytes, STARVED_BYTES_MAX))
        if self._session.lane == CATCH_UP_LANE:
            budget = min(budget, self._context.services.catch_up_rate.piece_bytes)
        copied = found_bytes = 0
        for _ in range(SLOTS_PER_ANSWER_MAX):
            slot = self._session.take_next() if found_bytes < budget else None
            if slot is None:
                return
            data = PartitionData(partition_index=slot.key[1], aborted_transactions=None)
            try:
                found = self._read(slot, data, budget - found_bytes)
            except (KafkaError, StorageFault) as error:
                self._refuse(data, error)
                _tell_loss(slot, data)
                self._session.drop(slot)
            else:
                slot.told(has_records=found.size_bytes > 0)
                copied += self._take(data, found)
                self._found_bytes = found_bytes = found_bytes + found.size_bytes
            self._tell(slot.key[0], data)
            if copied >= FETCH_COPY_BYTES_MAX:
                return

    def _read(self, slot: ReplicaSlot, data: PartitionData, budget: int) -> LogSlice:
        """What the follower lacks, never nothing if it lacks something: it would not ask again.

        So an answer can be one batch larger than its budget.
        """
        partition = slot.partition
        log = partition.log
        data.log_start_offset = log.log_start_offset
        partition.check_serves_followers()
        partition.check_epoch(slot.leader_epoch)
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = UNKNOWN_OFFSET
        data.log_end_offset = log.log_end_offset
        return self._context.services.replica_sessions.reads.read(
            partition,
            slot.fetch_offset,
            max_bytes=min(slot.max_bytes, budget),
            at_least_one=True,
        )

    def _take(self, data: PartitionData, found: LogSlice) -> int:
        """Put batches into the answer; how many bytes of them were copied."""
        if found.load is not None:
            self._cold.append(ColdSlice(data, found))
        elif len(found.chunks) == 1:
            data.records = chunk = found.chunks[0]
            return found.size_bytes if isinstance(chunk, bytes) else 0
        elif found.chunks:
            data.records = b"".join(found.chunks)
            return found.size_bytes
        return 0

    def _refuse(self, data: PartitionData, error: KafkaError | StorageFault) -> None:
        data.error_code = count_refusal(self._context, error)
        data.high_watermark = data.last_stable_offset = UNKNOWN_OFFSET

    def _tell(self, topic_id: UUID, data: PartitionData) -> None:
        topic = self._topics.get(topic_id)
        if topic is None:
            topic = self._topics[topic_id] = FetchableTopicResponse(topic_id=topic_id)
        topic.partitions.append(data)


def _tell_loss(slot: ReplicaSlot, data: PartitionData) -> None:
    """Where no replica has what the follower asks for, it goes on behind that (ADR 0025)."""
    log = slot.partition.log
    lost = log.damage.try_given_up(slot.fetch_offset)
    if lost is not None:
        epoch = log.epochs.epoch_at(slot.fetch_offset)
        _, epoch_end = log.epochs.end_offset_for(epoch, log.log_end_offset)
        data.lost_epoch = epoch
        data.lost_end_offset = min(lost.end_offset, epoch_end)


def _diverges(partition: Partition, wanted: FetchPartition, data: PartitionData) -> bool:
    last_epoch = wanted.last_fetched_epoch
    found = partition.try_find_divergence(last_epoch, wanted.fetch_offset)
    if last_epoch < partition.log.epochs.oldest:
        # What it holds up to our first entry is deleted here, or was never committed. A consumer
        # only goes on from there; a replica must not keep it.
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "the replica holds nothing of ours")
    if found is None:
        return False
    data.diverging_epoch = EpochEndOffset(epoch=found[0], end_offset=found[1])
    data.high_watermark = partition.high_watermark
    data.last_stable_offset = UNKNOWN_OFFSET
    return True
