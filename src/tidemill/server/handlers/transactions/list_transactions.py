"""ListTransactions (66), versions 0..2: the transactional ids that this broker coordinates.

v1 a filter by duration; v2 by a regular expression over the ids, which must match a whole id.

A client that may not describe an id does not see it. While some ids are being loaded the request is
refused: the client would take a partial list for the whole.
"""

from __future__ import annotations

from typing import final

from tidemill.coordinators.group.re2_expression import compile_expression
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.coordinators.transaction.transaction import Transaction
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.pacing import Pacer
from tidemill.server.request.authorizer import Operation, cluster, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

__all__ = ["HANDLER"]

IDS_PER_SLICE = 1_000
MATCHES_PER_SLICE = 20
"""With the longest ids and the largest expression that is allowed: some milliseconds."""
_STATES = {status.shown for status in TransactionStatus}


def handle(context: TransactionContext, request: ListTransactionsRequest) -> Answer:
    if context.services.transactions.is_loading:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return _list(context, request, _Wanted(request, context.services.clock.wall_ms()))


async def _list(
    context: TransactionContext, request: ListTransactionsRequest, is_wanted: _Wanted
) -> ListTransactionsResponse:
    response = ListTransactionsResponse(
        unknown_state_filters=[one for one in request.state_filters if one not in _STATES]
    )
    pacer = Pacer(IDS_PER_SLICE)
    for shard in list(context.services.transactions.shards()):
        for found in list(shard.transactions()):
            await pacer.step(is_wanted.cost)
            if is_wanted(found) and _may_see(context, found.transactional_id):
                response.transaction_states.append(
                    TransactionState(
                        transactional_id=found.transactional_id,
                        producer_id=found.producer_id,
                        transaction_state=found.status.shown,
                    )
                )
    return response


def _may_see(context: TransactionContext, name: str) -> bool:
    """A broker that asks must see all, or it would take a transaction for one that hangs."""
    if context.peer.is_internal and context.allows(Operation.CLUSTER_ACTION, cluster()):
        return True
    return context.allows(Operation.DESCRIBE, transactional_id(name))


@final
class _Wanted:
    """The filters of a request, as sets: it may name very many producers."""

    def __init__(self, request: ListTransactionsRequest, now_ms: int) -> None:
        """KafkaError: the regular expression cannot be used."""
        self._states = frozenset(request.state_filters)
        self._producer_ids = frozenset(request.producer_id_filters)
        self._duration_ms = request.duration_filter
        self._now_ms = now_ms
        pattern = request.transactional_id_pattern
        self._expression = compile_expression(pattern) if pattern else None
        self.cost = IDS_PER_SLICE // MATCHES_PER_SLICE if pattern else 1
        """Of one id, in steps of a slice."""

    def __call__(self, found: Transaction) -> bool:
        if self._states and found.status.shown not in self._states:
            return False
        if self._producer_ids and found.producer_id not in self._producer_ids:
            return False
        if self._duration_ms >= 0 and not self._is_old(found):
            return False
        matches = self._expression
        return matches is None or matches.fullmatch(found.transactional_id.encode()) is not None

    def _is_old(self, found: Transaction) -> bool:
        return found.status.is_open and self._now_ms - found.start_ms >= self._duration_ms


HANDLER = Handler(
    api_key=ApiKey.LIST_TRANSACTIONS,
    versions=(0, 2),
    handle=handle,
    refuse=refuse_with_error_code(ListTransactionsResponse),
)
