"""TxnOffsetCommit (28), versions 0..5: offsets that count if the transaction commits (T55).

v2 leader epochs; v3 flexible, and the member with its generation (KIP-447); v4 may say
TRANSACTION_ABORTABLE; v5 adds the group to the transaction by itself (KIP-890).

The group's coordinator asks the coordinator of the transaction first, unless the producer has
offsets of the same transaction pending here. A request that comes after the end of its transaction
is refused: nothing would ever commit or drop its offsets.
"""

from __future__ import annotations

import asyncio

from tidemill.coordinators.group.offsets.pending_offsets import Verification
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.awaiting import wait_value
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.server.request.authorizer import Operation, group, topic, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.partition_verifier import MARKER_PAUSES_S
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

__all__ = ["HANDLER"]

FIRST_WITH_ABORTABLE = 4
FIRST_ADDING = 5


def handle(context: TransactionContext, request: TxnOffsetCommitRequest) -> Answer:
    context.require(Operation.WRITE, transactional_id(request.transactional_id))
    context.require(Operation.READ, group(request.group_id))
    return _commit(context, request)


async def _commit(
    context: TransactionContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    allowed: list[TxnOffsetCommitRequestTopic] = []
    forbidden: list[TxnOffsetCommitRequestTopic] = []
    for one in request.topics:
        may_read = context.allows(Operation.READ, topic(one.name))
        (allowed if may_read else forbidden).append(one)
    request.topics = allowed
    try:
        answer = await _commit_allowed(context, request)
    except KafkaError as error:
        context.services.telemetry.count_error(error.code)
        answer = _refuse(request, error)
    refusal = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    answer.topics += [_refuse_topic(one, refusal) for one in forbidden]
    return answer


async def _commit_allowed(
    context: TransactionContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    verification = await _verified(context, request)
    return await wait_value(
        context.services.groups.write(
            request.group_id,
            lambda shard, now: shard.offsets.commit_in_transaction(request, verification, now=now),
            lambda code: _refuse(request, KafkaError(code)),
        )
    )


async def _verified(
    context: TransactionContext, request: TxnOffsetCommitRequest
) -> Verification | None:
    """KafkaError unless the group's partition belongs to the producer's open transaction.

    None: the producer has offsets of this transaction here. While the markers of its last one are
    written, the broker asks a few times: the client would wait for longer.
    """
    producer = ProducerName(request.producer_id, request.producer_epoch)
    groups = context.services.groups
    pauses_s = iter(MARKER_PAUSES_S)
    while True:
        verification = await wait_value(
            groups.write(
                request.group_id,
                lambda shard, _now: shard.offsets.begin_verification(producer),
                lambda _code: None,
            )
        )
        if verification is None:
            return None
        code = await _ask(context, request)
        if code is ErrorCode.NONE:
            return verification
        context.services.telemetry.verifications_refused += 1
        groups.forget_verification(request.group_id, verification)
        pause_s = next(pauses_s, None)
        if pause_s is None or code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            raise _refusal(context, code)
        await asyncio.sleep(pause_s)


async def _ask(context: TransactionContext, request: TxnOffsetCommitRequest) -> ErrorCode:
    index = context.services.groups.partition_of(request.group_id)
    partition = TopicPartition(OFFSETS_TOPIC, index)
    codes = await context.services.verifier.verify(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [partition],
        add=context.version >= FIRST_ADDING,
    )
    return codes[partition]


def _refusal(context: TransactionContext, code: ErrorCode) -> KafkaError:
    if code is ErrorCode.TRANSACTION_ABORTABLE and context.version < FIRST_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    return KafkaError(code, "the coordinator of the transaction refuses")


def _refuse(request: TxnOffsetCommitRequest, error: KafkaError) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(topics=[_refuse_topic(one, error) for one in request.topics])


def _refuse_topic(
    wanted: TxnOffsetCommitRequestTopic, error: KafkaError
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=wanted.name,
        partitions=[
            TxnOffsetCommitResponsePartition(
                partition_index=one.partition_index, error_code=int(error.code)
            )
            for one in wanted.partitions
        ],
    )


HANDLER = Handler(api_key=ApiKey.TXN_OFFSET_COMMIT, versions=(0, 5), handle=handle, refuse=_refuse)
