"""AddOffsetsToTxn (25), versions 0..4: a transaction will also commit offsets of a group (T53).

v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH; v3 flexible; v4 may say TRANSACTION_ABORTABLE.

It adds the group's partition of `__consumer_offsets`, which then gets a marker like any other.
"""

from __future__ import annotations

from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.deferred import Deferred, join_deferred
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.server.handlers.transactions.fenced_requests import refuse_older
from tidemill.server.request.authorizer import Operation, group, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.internal_topic import (
    ensure_internal_topic,
    internal_topic_is_usable,
)
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

__all__ = ["HANDLER"]

FIRST_WITH_FENCED = 2


def handle(context: TransactionContext, request: AddOffsetsToTxnRequest) -> Answer:
    if not request.transactional_id or not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id or group")
    context.require(Operation.WRITE, transactional_id(request.transactional_id))
    context.require(Operation.READ, group(request.group_id))
    if not internal_topic_is_usable(context.services, OFFSETS_TOPIC):
        return _create_topic(context)
    return refuse_older(
        context, lambda: _add(context, request), first_with_fenced=FIRST_WITH_FENCED
    )


async def _create_topic(context: TransactionContext) -> AddOffsetsToTxnResponse:
    """The first group of the cluster commits in a transaction: the producer asks again."""
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    try:
        await ensure_internal_topic(context.services, OFFSETS_TOPIC)
    except KafkaError as error:
        code = error.code
    context.services.telemetry.count_error(code)
    return AddOffsetsToTxnResponse(error_code=int(code))


def _add(
    context: TransactionContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Deferred[AddOffsetsToTxnResponse]:
    name = request.transactional_id
    index = context.services.groups.partition_of(request.group_id)
    producer = ProducerName(request.producer_id, request.producer_epoch)
    added = context.services.transactions.write(
        name,
        lambda shard, now: shard.add_partitions(
            name, producer, [TopicPartition(OFFSETS_TOPIC, index)], version=0, now=now
        ),
        lambda code: code,
    )
    return join_deferred([added], lambda codes: AddOffsetsToTxnResponse(error_code=int(codes[0])))


def _refuse(_request: AddOffsetsToTxnRequest, error: KafkaError) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=int(error.code))


HANDLER = Handler(api_key=ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), handle=handle, refuse=_refuse)
