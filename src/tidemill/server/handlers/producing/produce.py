"""Produce (0), versions 3..13, advertised from 0 (T3).

HOT PATH: a budget of 35 us of broker time for a request with one small batch.

v3 record batches of magic 2 only; v5 log start offset; v7 zstd; v8 per-record errors; v9 flexible;
v10 the new leader in the answer; v12 partitions join a transaction by themselves; v13 topic ids.

Every batch is checked and appended at once. A request that costs more than a slice goes on in later
turns of the loop, and a batch that takes long to check is checked in a thread
(`long_batch_check.py`). acks=1 is answered then. acks=all waits until each append is covered by the
mark that its topic asks for (`pending_acknowledgements.py`).
acks=0 gets no answer; if it fails the connection is closed, since the client has no other way to
notice (T9).

A partition that a request names twice gets its first batch; the others are refused with
INVALID_REQUEST. Kafka keeps only the last one and does not tell.

A batch that would open a transaction is verified first (`transaction_verification.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault, code_of
from tidemill.core.limits import (
    ANSWER_RECORD_ERRORS_MAX,
    PARTITION_WORK,
    PRODUCE_WORK_PER_SLICE,
)
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS
from tidemill.replication.leader_log import ACKS_ALL, Appended
from tidemill.replication.partition import Partition
from tidemill.server.handlers.producing.long_batch_check import LongBatchCheck
from tidemill.server.handlers.producing.pending_acknowledgements import PendingAcknowledgements
from tidemill.server.handlers.producing.produce_refusals import add_endpoints, refuse, refuse_all
from tidemill.server.handlers.producing.transaction_verification import (
    TransactionVerification,
    Unverified,
    is_transactional,
)
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, FastCodec, Handler, Progress, Unfinished
from tidemill.server.request.partition_access import find_partition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import ATTRIBUTES_AT, CODEC_MASK
from tidemill.wire.compression import ZSTD
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.wire.produce_fast import try_encode_response, try_read_request
from tidemill.wire.produced_batch import BatchWork, LongBatch

__all__ = ["HANDLER"]

VERSIONS: Final = (3, 13)
FIRST_WITH_ZSTD: Final = 7
FIRST_WITH_TOPIC_IDS: Final = 13
NO_CODEC: Final = 0
_ATTRIBUTES_LOW_BYTE_AT: Final = ATTRIBUTES_AT + 1

# Looking up a member of an enum takes 0.2 us.
DONE: Final = Progress.DONE
MORE: Final = Progress.MORE
AWAY: Final = Progress.AWAY


def handle(context: DataContext, request: ProduceRequest) -> Answer:
    if request.acks not in (ACKS_ALL, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    appends = _Appends(context, request)
    return appends.answer() if appends.run_slice() is DONE else Unfinished(appends)


@final
class _Appends:
    """The partitions of one request, appended one after the other; a `SlicedWork`."""

    __slots__ = (
        "_acks",
        "_context",
        "_entries",
        "_failed",
        "_is_repeated",
        "_long",
        "_now_ms",
        "_pending",
        "_record_errors_left",
        "_request",
        "_response",
        "_seen",
        "_topic_index",
        "_verification",
        "_work",
    )

    def __init__(self, context: DataContext, request: ProduceRequest) -> None:
        self._context = context
        self._request = request
        self._acks: int = request.acks
        self._response = response = ProduceResponse()
        acks_all = self._acks == ACKS_ALL
        self._pending = PendingAcknowledgements(context, response) if acks_all else None
        self._work = BatchWork(0)
        self._now_ms = 0
        self._failed = False
        self._topic_index = 0
        self._entries: list[PartitionProduceResponse] | None = None
        """The answers of the current topic: as many as its partitions that are done."""
        topics = request.topic_data
        is_one = len(topics) == 1 and len(topics[0].partition_data) == 1
        self._seen: set[tuple[str, int]] | None = None if is_one else set()
        self._long: LongBatchCheck | None = None
        """Of the next batch, if it takes long to check."""
        self._record_errors_left = ANSWER_RECORD_ERRORS_MAX
        self._verification: TransactionVerification | None = None
        self._is_repeated = False
        """The next partition was looked at before: its batch had to be verified."""

    # --- slices ----------------------------------------------------------------------------------

    def run_slice(self) -> Progress:
        if self._awaits_check or self._awaits_verification:
            return AWAY
        self._work.left = PRODUCE_WORK_PER_SLICE
        self._now_ms = self._context.services.clock.wall_ms()
        topics = self._request.topic_data
        while self._topic_index < len(topics):
            progress = self._run_topic(topics[self._topic_index])
            if progress is not DONE:
                return progress
            self._topic_index += 1
            self._entries = None
        return DONE

    def _run_topic(self, topic_data: TopicProduceData) -> Progress:
        """Append to the partitions that are left, as far as the slice goes."""
        context = self._context
        work = self._work
        name = _try_topic_name(context, topic_data)
        entries = self._entries
        if entries is None:
            if work.left <= 0:
                return MORE
            self._entries = entries = []
            answered = TopicProduceResponse(
                name=name or "", topic_id=topic_data.topic_id, partition_responses=entries
            )
            self._response.responses.append(answered)
            work.left -= PARTITION_WORK
        partitions = topic_data.partition_data
        while len(entries) < len(partitions):
            if work.left <= 0:
                return MORE
            work.left -= PARTITION_WORK
            data = partitions[len(entries)]
            entry = PartitionProduceResponse(index=data.index)
            try:
                self._append(name, data, entry)
            except (KafkaError, StorageFault) as error:
                self._failed = True
                refuse(context, entry, name, error)
                self._cut_record_errors(entry)
            except (LongBatch, Unverified):
                return AWAY
            entries.append(entry)
        return DONE

    def keep(self, keep: Callable[[memoryview], memoryview]) -> None:
        done = len(self._entries or ())
        for topic_data in self._request.topic_data[self._topic_index :]:
            for data in topic_data.partition_data[done:]:
                if isinstance(data.records, memoryview):
                    data.records = keep(data.records)
            done = 0

    @property
    def _awaits_check(self) -> bool:
        return self._long is not None and not self._long.is_done

    @property
    def _awaits_verification(self) -> bool:
        return self._verification is not None and self._verification.is_wanted

    async def run_away(self) -> None:
        if self._verification is not None and self._verification.is_wanted:
            await self._verification.run(self._left())
            return
        assert self._long is not None
        assert self._entries is not None
        topic_data = self._request.topic_data[self._topic_index]
        records = topic_data.partition_data[len(self._entries)].records
        assert isinstance(records, memoryview)
        await self._long.run(self._context.services, records, self._now_ms)

    def _left(self) -> Iterator[tuple[str, PartitionProduceData]]:
        """The partitions whose batches are not appended yet."""
        done = len(self._entries or ())
        for topic_data in self._request.topic_data[self._topic_index :]:
            name = _try_topic_name(self._context, topic_data)
            for data in topic_data.partition_data[done:]:
                if name is not None and name not in INTERNAL_TOPICS:
                    yield name, data
            done = 0

    # --- one partition ---------------------------------------------------------------------------

    def _append(
        self, name: str | None, data: PartitionProduceData, entry: PartitionProduceResponse
    ) -> None:
        """Append one batch and fill its entry. KafkaError or StorageFault: nothing was appended.

        LongBatch: nothing was appended, and `run_away` goes on.
        """
        context = self._context
        long, self._long = self._long, None
        is_new = long is None and not self._is_repeated
        self._is_repeated = False
        try:
            partition = self._writable(name, data.index, is_new=is_new)
            records = _checked_records(context.version, data)
            checked = None if long is None else long.result()
            if is_transactional(records):
                self._check_verified(partition, records, long)
        except (KafkaError, StorageFault) as refusal:
            self._refused(name, data, code_of(refusal))
            raise
        if checked is None:
            appended = self._append_now(partition, records)
        else:
            appended = partition.as_leader.append_checked(
                *checked, acks=self._acks, now_ms=self._now_ms
            )
        entry.base_offset = appended.base_offset
        entry.log_append_time_ms = appended.log_append_time
        entry.log_start_offset = partition.log.log_start_offset
        telemetry = context.services.telemetry
        if appended.duplicate:
            telemetry.duplicates_recognised += 1
        else:
            telemetry.batches_appended += 1
            telemetry.records_appended += appended.next_offset - appended.base_offset
            telemetry.bytes_appended += len(records)
        if self._pending is not None:
            self._pending.wait(partition, appended.next_offset, entry)

    def _refused(self, name: str | None, data: PartitionProduceData, code: ErrorCode) -> None:
        """The batch has not come as far as its log: none must overtake it there."""
        if isinstance(data.records, memoryview):
            topic = name or self._request.topic_data[self._topic_index].topic_id
            replicas = self._context.services.replicas
            replicas.refused(topic, data.index, data.records, code, self._now_ms)

    def _check_verified(
        self,
        partition: Partition,
        records: memoryview,
        long: LongBatchCheck | None,
    ) -> None:
        """KafkaError unless the batch belongs to its producer's transaction.

        Unverified: nothing was appended, and `run_away` goes on.
        """
        if self._verification is None:
            self._verification = TransactionVerification(self._context, self._request)
        try:
            self._verification.check(partition, records)
        except Unverified:
            self._long = long
            self._is_repeated = True
            raise

    def _writable(self, name: str | None, index: int, *, is_new: bool) -> Partition:
        """The partition, if clients may write to it and the request has not named it before."""
        context = self._context
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if name in INTERNAL_TOPICS:
            context.require(Operation.WRITE, topic(name))
            # A coordinator would not notice what others write to its state.
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic belongs to the broker")
        partition = find_partition(context, Operation.WRITE, name, index)
        seen = self._seen
        if seen is not None and is_new:
            count = len(seen)
            seen.add((name, index))
            if len(seen) == count:
                detail = "the request names this partition twice; only the first batch counts"
                raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
        if context.version >= FIRST_WITH_TOPIC_IDS:
            wanted = self._request.topic_data[self._topic_index].topic_id
            if partition.topic_id != wanted:
                # The image has the topic, and the partition is that of a deleted one still (I34).
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return partition

    def _cut_record_errors(self, entry: PartitionProduceResponse) -> None:
        """Clients treat a batch without them as refused as a whole, which it is."""
        listed = entry.record_errors
        if listed:
            entry.record_errors = listed[: self._record_errors_left]
            self._record_errors_left -= len(entry.record_errors)

    def _append_now(self, partition: Partition, records: memoryview) -> Appended:
        try:
            return partition.as_leader.append(
                records, acks=self._acks, now_ms=self._now_ms, work=self._work
            )
        except LongBatch:
            self._long = LongBatchCheck(partition.settings.policy)
            raise

    # --- the answer ------------------------------------------------------------------------------

    def answer(self) -> ProduceResponse | Deferred[ProduceResponse] | None:
        if self._failed:
            add_endpoints(self._context, self._response)
        if self._acks == 0:
            return _no_answer(self._failed)
        if self._pending is None:
            return self._response
        return self._pending.answer(self._request.timeout_ms)


def _no_answer(failed: bool) -> Deferred[Any] | None:
    """For acks=0: nothing, or a deferred None, which closes the connection."""
    if not failed:
        return None
    closing: Deferred[Any] = Deferred()
    closing.resolve(None)
    return closing


def _try_topic_name(context: DataContext, data: TopicProduceData) -> str | None:
    if context.version < FIRST_WITH_TOPIC_IDS:
        return data.name
    return context.image.names.get(data.topic_id)


def _checked_records(version: int, data: PartitionProduceData) -> memoryview:
    """The batch, as far as the request's version decides; the partition checks the rest."""
    records = data.records
    if not isinstance(records, memoryview) or not len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no record batch")
    if version < FIRST_WITH_ZSTD and _codec(records) == ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7")
    return records


def _codec(records: memoryview) -> int:
    if len(records) <= _ATTRIBUTES_LOW_BYTE_AT:
        return NO_CODEC  # too short for a batch: the partition refuses it
    return records[_ATTRIBUTES_LOW_BYTE_AT] & CODEC_MASK


HANDLER = Handler(
    api_key=ApiKey.PRODUCE,
    versions=VERSIONS,
    advertised_min=0,
    fast=FastCodec(try_read_request, try_encode_response),
    handle=handle,
    refuse=refuse_all,
)
