"""EndTxn (26), versions 0..5: a producer commits its transaction, or aborts it (T54).

v2 PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH; v3 flexible; v4 may say TRANSACTION_ABORTABLE;
v5 raises the producer's epoch and returns it (KIP-890).

The answer leaves when the decision is durable. The markers follow; until all are written the
producer's next transaction has to wait.
"""

from __future__ import annotations

from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.decisions import EPOCH_PER_TRANSACTION, Ending
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.handlers.transactions.fenced_requests import (
    fresh_id,
    refuse_older,
    with_fresh_ids,
)
from tidemill.server.request.authorizer import Operation, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.end_txn import EndTxnRequest, EndTxnResponse

__all__ = ["HANDLER"]

FIRST_WITH_FENCED = 2
FIRST_RAISING = 5


def handle(context: TransactionContext, request: EndTxnRequest) -> Answer:
    name = request.transactional_id
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
    context.require(Operation.WRITE, transactional_id(name))
    ending = Ending(
        ProducerName(request.producer_id, request.producer_epoch),
        request.committed,
        EPOCH_PER_TRANSACTION if context.version >= FIRST_RAISING else 0,
    )

    def end() -> EndTxnResponse | Deferred[EndTxnResponse]:
        return context.services.transactions.write(
            name,
            lambda shard, now: shard.end(name, ending, fresh_id=lambda: fresh_id(context), now=now),
            lambda code: _refuse(request, KafkaError(code)),
        )

    return with_fresh_ids(
        context,
        lambda: refuse_older(context, end, first_with_fenced=FIRST_WITH_FENCED),
        lambda error: _refuse(request, error),
    )


def _refuse(_request: EndTxnRequest, error: KafkaError) -> EndTxnResponse:
    return EndTxnResponse(error_code=int(error.code))


HANDLER = Handler(api_key=ApiKey.END_TXN, versions=(0, 5), handle=handle, refuse=_refuse)
