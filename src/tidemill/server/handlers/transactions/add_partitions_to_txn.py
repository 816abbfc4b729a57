"""AddPartitionsToTxn (24), versions 0..5: partitions become part of a transaction (T53).

v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH; v3 flexible; v4 many transactions at once,
from brokers, which may also only ask (`verify_only`); v5 as v4.

Up to version 3 a client adds partitions before it writes to them: all of them or none. From version
4 on a broker asks for a client that has sent it transactional records: with TV1 whether their
partitions were added, with TV2 it has them added.
"""

from __future__ import annotations

import asyncio

from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.deferred import Deferred, join_deferred
from tidemill.server.handlers.transactions.fenced_requests import refuse_older
from tidemill.server.request.authorizer import Operation, topic, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

__all__ = ["HANDLER"]

FIRST_WITH_FENCED = 2
FIRST_OF_BROKERS = 4


def handle(context: TransactionContext, request: AddPartitionsToTxnRequest) -> Answer:
    if context.version >= FIRST_OF_BROKERS:
        context.require_broker()
        return _add_for_brokers(context, request.transactions)
    return refuse_older(
        context, lambda: _add(context, request), first_with_fenced=FIRST_WITH_FENCED
    )


# --- clients -------------------------------------------------------------------------------------


def _add(
    context: TransactionContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Deferred[AddPartitionsToTxnResponse]:
    name, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    context.require(Operation.WRITE, transactional_id(name))
    partitions = _partitions(topics)
    refused = {one: code for one in partitions if (code := _refusal(context, one))}
    if refused:
        return _response(topics, refused, others=ErrorCode.OPERATION_NOT_ATTEMPTED)
    producer = ProducerName(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    added = context.services.transactions.write(
        name,
        lambda shard, now: shard.add_partitions(name, producer, partitions, version=0, now=now),
        lambda code: code,
    )
    return join_deferred([added], lambda codes: _response(topics, {}, others=codes[0]))


def _refusal(context: TransactionContext, name: TopicPartition) -> ErrorCode:
    if not context.allows(Operation.WRITE, topic(name.topic)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = context.image.topic(name.topic)
    if found is not None and found.is_view:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED  # as by Produce
    if context.image.partition(name.topic, name.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(one.name, index) for one in topics for index in one.partitions]


def _response(
    topics: list[AddPartitionsToTxnTopic],
    codes: dict[TopicPartition, ErrorCode],
    *,
    others: ErrorCode,
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(topics, codes, others=others)
    )


def _results(
    topics: list[AddPartitionsToTxnTopic],
    codes: dict[TopicPartition, ErrorCode],
    *,
    others: ErrorCode,
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=one.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=int(codes.get(TopicPartition(one.name, index), others)),
                )
                for index in one.partitions
            ],
        )
        for one in topics
    ]


# --- brokers -------------------------------------------------------------------------------------


async def _add_for_brokers(
    context: TransactionContext, transactions: list[AddPartitionsToTxnTransaction]
) -> AddPartitionsToTxnResponse:
    """All at once: they share the append of this turn, and each waits for its own shard."""
    results = await asyncio.gather(*(_verify(context, one) for one in transactions))
    return AddPartitionsToTxnResponse(results_by_transaction=list(results))


async def _verify(
    context: TransactionContext, wanted: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    partitions = _partitions(wanted.topics)
    try:
        codes = await context.services.verifier.verify_here(
            wanted.transactional_id,
            ProducerName(wanted.producer_id, wanted.producer_epoch),
            partitions,
            add=not wanted.verify_only,
        )
    except KafkaError as error:
        context.services.telemetry.count_error(error.code)
        codes = dict.fromkeys(partitions, error.code)
    return AddPartitionsToTxnResult(
        transactional_id=wanted.transactional_id,
        topic_results=_results(wanted.topics, codes, others=ErrorCode.NONE),
    )


def _refuse(request: AddPartitionsToTxnRequest, error: KafkaError) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        error_code=int(error.code),
        results_by_topic_v3_and_below=_results(request.v3_and_below_topics, {}, others=error.code),
    )


HANDLER = Handler(
    api_key=ApiKey.ADD_PARTITIONS_TO_TXN, versions=(0, 5), handle=handle, refuse=_refuse
)
