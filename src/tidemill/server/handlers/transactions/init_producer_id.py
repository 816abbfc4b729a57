"""InitProducerId (22), versions 0..5: the identity that makes a producer's retries harmless (T30).

v2 flexible; v3 a producer may keep its id in a new epoch; v4 PRODUCER_FENCED instead of
INVALID_PRODUCER_EPOCH; v5 may say TRANSACTION_ABORTABLE.

Without a transactional id any broker answers. A fresh id comes from a block that this broker has
reserved; the coordination store is asked only when the block is used up. A producer that names its
id and epoch gets the same id with the next epoch, or a fresh id when the epochs run out. Nothing is
remembered: each log checks the epochs that it sees, and a client that asks again after a lost
answer gets the same one.

With a transactional id its coordinator answers. The producer gets the id's next epoch, which fences
its other instances; a transaction that one of them left open is aborted first, and until that is
done the producer is told to ask again: CONCURRENT_TRANSACTIONS (T52).
"""

from __future__ import annotations

from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.loop.deferred import Deferred
from tidemill.server.handlers.transactions.fenced_requests import (
    fresh_id,
    refuse_older,
    with_fresh_ids,
)
from tidemill.server.request.authorizer import Operation, cluster, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

__all__ = ["HANDLER"]

FIRST_WITH_FENCED = 4
NONE_YET = -1
EPOCH_MAX = 2**15 - 2
"""The last epoch that is given out: one below what the field can hold, as in Kafka."""


def handle(context: TransactionContext, request: InitProducerIdRequest) -> Answer:
    if request.transactional_id is not None:
        return _begin(context, request, request.transactional_id)
    if not context.allows(Operation.IDEMPOTENT_WRITE, cluster()):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    _check_identity(request)
    if request.producer_id != NONE_YET and request.producer_epoch < EPOCH_MAX:
        return InitProducerIdResponse(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
        )
    fresh = context.services.producer_ids.try_next()
    if fresh is None:
        return _fetch_fresh(context)
    return InitProducerIdResponse(producer_id=fresh)


def _begin(context: TransactionContext, request: InitProducerIdRequest, name: str) -> Answer:
    """The coordinator's answer for a transactional id."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    context.require(Operation.WRITE, transactional_id(name))
    _check_identity(request)
    resumed = None
    if request.producer_id != NONE_YET:
        resumed = ProducerName(request.producer_id, request.producer_epoch)

    def begin() -> InitProducerIdResponse | Deferred[InitProducerIdResponse]:
        return context.services.transactions.write(
            name,
            lambda shard, now: shard.init_producer(
                name,
                timeout_ms=request.transaction_timeout_ms,
                resumed=resumed,
                fresh_id=lambda: fresh_id(context),
                now=now,
            ),
            lambda code: _refuse(None, KafkaError(code)),
        )

    return with_fresh_ids(
        context,
        lambda: refuse_older(context, begin, first_with_fenced=FIRST_WITH_FENCED),
        lambda error: _refuse(None, error),
    )


def _check_identity(request: InitProducerIdRequest) -> None:
    """KafkaError unless both numbers are given, or neither."""
    absent = request.producer_id == NONE_YET and request.producer_epoch == NONE_YET
    present = request.producer_id >= 0 and request.producer_epoch >= 0
    if not (absent or present):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id and its epoch go together")


async def _fetch_fresh(context: TransactionContext) -> InitProducerIdResponse:
    try:
        fresh = await context.services.producer_ids.next()
    except StoreUnavailable:
        # Clients without transactions retry after this code.
        error = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        context.services.telemetry.count_error(error.code)
        return _refuse(None, error)
    return InitProducerIdResponse(producer_id=fresh)


def _refuse(_request: object, error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(error.code), producer_epoch=NONE_YET)


HANDLER = Handler(
    api_key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    handle=handle,
    refuse=_refuse,
)
