"""FindCoordinator (10), versions 0..6: refuses, because there is no coordinator yet.

v1 key type and error message; v3 flexible; v4 several keys at once; v6 share groups.

It is offered all the same, since librdkafka takes its presence for "this broker knows lz4" and
sends batches uncompressed without it, silently. Every consumer of librdkafka asks for its group's
coordinator, also one that was assigned its partitions and needs none; so groups get the retriable
refusal, which it keeps to itself. Transactions get one that ends the attempt.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.context import RequestContext
from tidemill.server.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

__all__ = ["HANDLER"]

VERSIONS = (0, 6)
FIRST_WITH_SEVERAL_KEYS = 4
NOBODY = -1
_REFUSALS = {
    0: KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "consumer groups are not served yet"),
    1: KafkaError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served yet"
    ),
    2: KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "share groups are not served yet"),
}


def handle(context: RequestContext, request: FindCoordinatorRequest) -> Answer:
    unknown = KafkaError(ErrorCode.INVALID_REQUEST, f"no key type {request.key_type}")
    error = _REFUSALS.get(request.key_type, unknown)
    context.services.telemetry.count_error(error.code)
    if context.version < FIRST_WITH_SEVERAL_KEYS:
        return FindCoordinatorResponse(
            error_code=int(error.code), error_message=error.detail, node_id=NOBODY, port=NOBODY
        )
    return _refuse(request, error)


def _refuse(request: FindCoordinatorRequest, error: KafkaError) -> FindCoordinatorResponse:
    """One refusal for each key."""
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key,
                node_id=NOBODY,
                port=NOBODY,
                error_code=int(error.code),
                error_message=error.detail,
            )
            for key in request.coordinator_keys
        ]
    )


HANDLER = Handler(api_key=ApiKey.FIND_COORDINATOR, versions=VERSIONS, handle=handle, refuse=_refuse)
