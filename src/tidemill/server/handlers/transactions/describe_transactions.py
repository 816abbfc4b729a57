"""DescribeTransactions (65), version 0: the state of transactional ids, by their coordinator."""

from __future__ import annotations

from tidemill.coordinators.transaction.transaction import Transaction
from tidemill.core.errors import KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.authorizer import Operation, topic, transactional_id
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.joined_answers import answer_each
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

__all__ = ["HANDLER"]


def handle(context: TransactionContext, request: DescribeTransactionsRequest) -> Answer:
    return answer_each(
        context,
        list(dict.fromkeys(request.transactional_ids)),
        lambda name: _describe(context, name),
        _refuse_one,
        lambda states: DescribeTransactionsResponse(transaction_states=states),
    )


def _describe(
    context: TransactionContext, name: str
) -> TransactionState | Deferred[TransactionState]:
    context.require(Operation.DESCRIBE, transactional_id(name))
    return context.services.transactions.read(
        name,
        lambda shard, _now: _shown(context, shard.describe(name)),
        lambda code: _refuse_one(name, KafkaError(code)),
    )


def _shown(context: TransactionContext, found: Transaction) -> TransactionState:
    topics: dict[str, list[int]] = {}
    for one, index in sorted(found.partitions):
        if context.allows(Operation.DESCRIBE, topic(one)):
            topics.setdefault(one, []).append(index)
    return TransactionState(
        transactional_id=found.transactional_id,
        transaction_state=found.status.shown,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[TopicData(topic=one, partitions=indexes) for one, indexes in topics.items()],
    )


def _refuse_one(name: str, error: KafkaError) -> TransactionState:
    return TransactionState(transactional_id=name, error_code=int(error.code))


def _refuse(
    request: DescribeTransactionsRequest, error: KafkaError
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_refuse_one(name, error) for name in request.transactional_ids]
    )


HANDLER = Handler(
    api_key=ApiKey.DESCRIBE_TRANSACTIONS, versions=(0, 0), handle=handle, refuse=_refuse
)
