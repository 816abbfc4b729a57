"""WriteTxnMarkers (27), versions 1..2: a coordinator ends a transaction in partitions led here.

v2 the version of transactions that the producer uses.

A marker that comes twice changes nothing, one with an older epoch is refused. The answer leaves
when every marker is acknowledged with acks=all, or has not been for too long.

Only brokers may ask for any marker: one of a stranger would commit or hide the records of others.
An administrator may have one transaction aborted in one partition, if it hangs there (KIP-664,
KIP-1037; `HangingTransactions`).
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.coordinators.runtime.partition_writer import Marker
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.coordinators.transaction.decisions import EPOCH_PER_TRANSACTION
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.deferred import Deferred
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import TransactionContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.joined_answers import answer_each
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

__all__ = ["HANDLER"]


class _Wanted(NamedTuple):
    """One marker in one partition."""

    marker: Marker
    partition: TopicPartition


def handle(context: TransactionContext, request: WriteTxnMarkersRequest) -> Answer:
    if not context.peer.is_internal:
        context.require(Operation.ALTER, cluster())
        return _abort_hanging(context, request, _only_abort(request))
    context.require_broker()

    def write(one: _Wanted) -> ErrorCode | Deferred[ErrorCode]:
        return context.services.markers.write(one.marker, one.partition)

    return answer_each(
        context,
        [_Wanted(_marker(entry), name) for entry in request.markers for name in _names(entry)],
        write,
        lambda _one, error: error.code,
        lambda codes: _response(request, codes),
    )


# --- administrators ------------------------------------------------------------------------------


def _only_abort(request: WriteTxnMarkersRequest) -> _Wanted:
    """What an administrator may ask for. KafkaError: it is more than that."""
    wanted = [_Wanted(_marker(entry), name) for entry in request.markers for name in _names(entry)]
    if any(one.marker.is_commit for one in wanted):
        detail = "only the coordinator of a transaction may commit it"
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, detail)
    if len(wanted) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "one transaction in one partition at a time")
    return wanted[0]


async def _abort_hanging(
    context: TransactionContext, request: WriteTxnMarkersRequest, wanted: _Wanted
) -> WriteTxnMarkersResponse:
    marker = wanted.marker
    try:
        code = await context.services.hanging.abort(
            wanted.partition, marker.producer, coordinator_epoch=marker.coordinator_epoch
        )
    except KafkaError as error:
        code = error.code
    if code is not ErrorCode.NONE:
        context.services.telemetry.count_error(code)
    return _response(request, [code])


# --- messages ------------------------------------------------------------------------------------


def _marker(entry: WritableTxnMarker) -> Marker:
    producer = ProducerName(entry.producer_id, entry.producer_epoch)
    is_bumped = entry.transaction_version >= EPOCH_PER_TRANSACTION
    return Marker(producer, entry.transaction_result, entry.coordinator_epoch, is_bumped)


def _names(entry: WritableTxnMarker) -> list[TopicPartition]:
    return [
        TopicPartition(one.name, index) for one in entry.topics for index in one.partition_indexes
    ]


def _response(request: WriteTxnMarkersRequest, codes: list[ErrorCode]) -> WriteTxnMarkersResponse:
    """The codes in the order of the request."""
    left = iter(codes)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=entry.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=one.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=int(next(left))
                            )
                            for index in one.partition_indexes
                        ],
                    )
                    for one in entry.topics
                ],
            )
            for entry in request.markers
        ]
    )


def _refuse(request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    count = sum(len(_names(entry)) for entry in request.markers)
    return _response(request, [error.code] * count)


HANDLER = Handler(
    api_key=ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    handle=handle,
    refuse=_refuse,
)
