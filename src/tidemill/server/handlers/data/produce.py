"""Produce (0), versions 3..13, advertised from 0 (T3).

HOT PATH: a budget of 35 us of broker time for a request with one small batch.

v3 record batches of magic 2 only; v5 log start offset; v7 zstd; v8 per-record errors; v9 flexible;
v10 the new leader in the answer; v12 as v11 until there are transactions; v13 topic ids.

First stage: check and append every batch. Second stage, for acks=all: wait until each append is
acknowledged by the mark that the topic asks for. acks=1 leaves at once, acks=0 gets no answer at
all; an error under acks=0 closes the connection, the only sign there is (T9).

Left out: transactional batches; they come with the transaction coordinator.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.logs import shown
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import Timer
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS
from tidemill.replication.partition import ACKS_ALL, Partition
from tidemill.replication.waiters import AckWaiter
from tidemill.server.request.authorizer import Operation, topic
from tidemill.server.request.context import DataContext
from tidemill.server.request.handler import Answer, FastCodec, Handler
from tidemill.server.request.leader_hints import leader_endpoints, leader_hint
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import ATTRIBUTES_AT, CODEC_MASK, TRANSACTIONAL
from tidemill.wire.compression import ZSTD
from tidemill.wire.generated.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.wire.produce_fast import try_encode_response, try_read_request
from tidemill.wire.produced_batch import InvalidRecords

__all__ = ["HANDLER"]

log = logging.getLogger(__name__)

VERSIONS = (3, 13)
FIRST_WITH_ZSTD = 7
FIRST_WITH_LEADER_HINTS = 10
FIRST_WITH_TOPIC_IDS = 13
NO_OFFSET = -1
_ATTRIBUTES_LOW_BYTE_AT = ATTRIBUTES_AT + 1


@final
class _Acknowledgement:
    """One acks=all request between its appends and its answer."""

    __slots__ = ("_answer", "_context", "_open", "_response", "_timer", "_waiters")

    def __init__(self, context: DataContext, response: ProduceResponse) -> None:
        self._context = context
        self._response = response
        self._answer: Deferred[ProduceResponse] | None = None
        self._waiters: list[AckWaiter] = []
        self._open = 0
        self._timer: Timer | None = None

    def wait(self, partition: Partition, next_offset: int, entry: PartitionProduceResponse) -> None:
        self._open += 1
        settle = partial(self._settled, partition, entry)
        self._waiters.append(partition.wait_acknowledged(next_offset, settle))

    def answer(self, timeout_ms: int) -> Answer:
        """The response if nothing is open any more, else a deferred one with a deadline."""
        if self._open == 0:
            return self._response
        self._answer = Deferred()
        self._timer = self._context.services.timers.add_after(
            max(0, timeout_ms) / 1000, self._time_out
        )
        return self._answer

    def _settled(
        self, partition: Partition, entry: PartitionProduceResponse, code: ErrorCode
    ) -> None:
        if code is not ErrorCode.NONE:
            _refuse(self._context, entry, partition.name.topic, KafkaError(code))
            _add_endpoints(self._context, self._response)
        self._open -= 1
        if self._open == 0 and self._answer is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._answer.resolve(self._response)

    def _time_out(self) -> None:
        for waiter in self._waiters:
            waiter.settle(ErrorCode.REQUEST_TIMED_OUT)


def handle(context: DataContext, request: ProduceRequest) -> Answer:
    acks = request.acks
    if acks not in (ACKS_ALL, 0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    response = ProduceResponse()
    waiting = _Acknowledgement(context, response) if acks == ACKS_ALL else None
    now_ms = context.services.clock.wall_ms()
    failed = False
    for topic_data in request.topic_data:
        name = _topic_name(context, topic_data)
        entries = []
        for data in topic_data.partition_data:
            entry = PartitionProduceResponse(index=data.index)
            entries.append(entry)
            try:
                _append(context, acks, name, data, entry, waiting, now_ms)
            except (KafkaError, StorageFault) as error:
                failed = True
                _refuse(context, entry, name, error)
        response.responses.append(
            TopicProduceResponse(
                name=name or "", topic_id=topic_data.topic_id, partition_responses=entries
            )
        )
    if failed:
        _add_endpoints(context, response)
    if acks == 0:
        return _silence(failed)
    return response if waiting is None else waiting.answer(request.timeout_ms)


def _silence(failed: bool) -> Answer:
    """acks=0 has no answer; a deferred nothing closes the connection."""
    if not failed:
        return None
    closing: Deferred[Any] = Deferred()
    closing.resolve(None)
    return closing


def _topic_name(context: DataContext, data: TopicProduceData) -> str | None:
    if context.version < FIRST_WITH_TOPIC_IDS:
        return data.name
    return context.image.names.get(data.topic_id)


def _append(
    context: DataContext,
    acks: int,
    name: str | None,
    data: PartitionProduceData,
    entry: PartitionProduceResponse,
    waiting: _Acknowledgement | None,
    now_ms: int,
) -> None:
    """One partition: find it, append, and for acks=all wait for the mark."""
    services = context.services
    partition = _find(context, name, data.index)
    records = _checked_records(context.version, data)
    appended = partition.append(records, acks=acks, now_ms=now_ms)
    entry.base_offset = appended.base_offset
    entry.log_append_time_ms = appended.log_append_time
    entry.log_start_offset = partition.log.log_start_offset
    telemetry = services.telemetry
    if appended.duplicate:
        telemetry.duplicates_recognised += 1
    else:
        telemetry.batches_appended += 1
        telemetry.records_appended += appended.next_offset - appended.base_offset
        telemetry.bytes_appended += len(records)
    if waiting is not None:
        waiting.wait(partition, appended.next_offset, entry)


def _find(context: DataContext, name: str | None, index: int) -> Partition:
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not context.allows(Operation.WRITE, topic(name)):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if name in INTERNAL_TOPICS:
        # A coordinator is the only writer of its state: it would not notice anybody else's.
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic belongs to the broker")
    partition = context.services.replicas.find(name, index)
    if partition is None:
        raise context.missing_partition(name, index)
    return partition


def _checked_records(version: int, data: PartitionProduceData) -> memoryview:
    """What can be told from the version and the first bytes; the rest is the partition's."""
    records = data.records
    if not isinstance(records, memoryview) or not len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD, "there is no record batch")
    if len(records) > _ATTRIBUTES_LOW_BYTE_AT:
        attributes = records[_ATTRIBUTES_LOW_BYTE_AT]
        if version < FIRST_WITH_ZSTD and attributes & CODEC_MASK == ZSTD:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7")
        if attributes & TRANSACTIONAL:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "transactions are not served yet")
    return records


def _refuse(
    context: DataContext,
    entry: PartitionProduceResponse,
    name: str | None,
    error: KafkaError | StorageFault,
) -> None:
    if isinstance(error, StorageFault):
        services = context.services
        if services.fault_log.allows("produce", services.clock.monotonic()):
            log.error("producers are refused: %s", shown(error))
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    context.services.telemetry.count_error(error.code)
    entry.error_code = int(error.code)
    entry.error_message = error.detail or None
    entry.base_offset = NO_OFFSET
    entry.log_append_time_ms = entry.log_start_offset = NO_OFFSET
    if isinstance(error, InvalidRecords):
        entry.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=why)
            for index, why in error.record_errors
        ]
    hinted = error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    if hinted and name is not None and context.version >= FIRST_WITH_LEADER_HINTS:
        entry.current_leader = leader_hint(context, name, entry.index, LeaderIdAndEpoch)


def _add_endpoints(context: DataContext, response: ProduceResponse) -> None:
    """Addresses of the leaders that the answer names (T28)."""
    if context.version < FIRST_WITH_LEADER_HINTS:
        return
    hints = [e.current_leader for t in response.responses for e in t.partition_responses]
    response.node_endpoints = leader_endpoints(context, hints, NodeEndpoint)


def _refuse_all(request: ProduceRequest, error: KafkaError) -> ProduceResponse:
    """The whole request is refused: every partition says why."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=data.name,
                topic_id=data.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=p.index, error_code=int(error.code), base_offset=NO_OFFSET
                    )
                    for p in data.partition_data
                ],
            )
            for data in request.topic_data
        ]
    )


HANDLER = Handler(
    api_key=ApiKey.PRODUCE,
    versions=VERSIONS,
    advertised_min=0,
    fast=FastCodec(try_read_request, try_encode_response),
    handle=handle,
    refuse=_refuse_all,
)
