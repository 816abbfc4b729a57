"""ListPartitionReassignments (46), version 0: partitions whose replicas are being moved.

Replicas are not moved between brokers yet, so the list is empty; as in Kafka, partitions that are
not being moved are left out, whether the request names them or not.
"""

from __future__ import annotations

from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

__all__ = ["HANDLER"]


def handle(context: ClusterContext, _request: ListPartitionReassignmentsRequest) -> Answer:
    context.require(Operation.DESCRIBE, cluster())
    return ListPartitionReassignmentsResponse(error_message=None)


HANDLER = Handler(
    api_key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    handle=handle,
    refuse=refuse_with_error_code(ListPartitionReassignmentsResponse),
)
