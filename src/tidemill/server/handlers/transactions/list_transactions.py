"""ListTransactions (66), versions 0..1: the transactional ids that this broker coordinates.

v1 a filter by duration. Left out: v2, a filter by a regular expression over the ids.

A client that may not describe an id does not see it. While some ids are being loaded the request is
refused: the client would take a partial list for the whole.
"""

from __future__ import annotations

from typing import final

from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.coordinators.transaction.transaction import Transaction
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.pacing import Pacer
from tidemill.server.request.authorizer import Operation, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

__all__ = ["HANDLER"]

SHARDS_PER_SLICE = 1
_STATES = {status.shown for status in TransactionStatus}


def handle(context: TransactionContext, request: ListTransactionsRequest) -> Answer:
    if context.services.transactions.is_loading:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return _list(context, request)


async def _list(
    context: TransactionContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    response = ListTransactionsResponse(
        unknown_state_filters=[one for one in request.state_filters if one not in _STATES]
    )
    is_wanted = _Wanted(request, context.services.clock.wall_ms())
    pacer = Pacer(SHARDS_PER_SLICE)
    for shard in list(context.services.transactions.shards()):
        await pacer.step()
        response.transaction_states.extend(
            TransactionState(
                transactional_id=found.transactional_id,
                producer_id=found.producer_id,
                transaction_state=found.status.shown,
            )
            for found in shard.transactions()
            if is_wanted(found)
            and context.allows(Operation.DESCRIBE, transactional_id(found.transactional_id))
        )
    return response


@final
class _Wanted:
    """The filters of a request, as sets: it may name very many producers."""

    def __init__(self, request: ListTransactionsRequest, now_ms: int) -> None:
        self._states = frozenset(request.state_filters)
        self._producer_ids = frozenset(request.producer_id_filters)
        self._duration_ms = request.duration_filter
        self._now_ms = now_ms

    def __call__(self, found: Transaction) -> bool:
        if self._states and found.status.shown not in self._states:
            return False
        if self._producer_ids and found.producer_id not in self._producer_ids:
            return False
        if self._duration_ms < 0:
            return True
        is_open = found.status is TransactionStatus.ONGOING or found.status.is_prepared
        return is_open and self._now_ms - found.start_ms >= self._duration_ms


HANDLER = Handler(
    api_key=ApiKey.LIST_TRANSACTIONS,
    versions=(0, 1),
    handle=handle,
    refuse=refuse_with_error_code(ListTransactionsResponse),
)
