"""FindCoordinator (10), versions 0..6: refuses, because there is no coordinator yet.

v1 key type and error message; v3 flexible; v4 several keys at once; v6 share groups.

It is offered all the same, since librdkafka takes its presence for "this broker knows lz4" and
sends batches uncompressed without it, silently. The refusal is not retriable: a client that wants a
group, a transaction or a share group says so at once instead of asking for ever.
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
NOBODY = -1
_TYPES = {0: "consumer groups", 1: "transactions", 2: "share groups"}


def handle(_context: RequestContext, request: FindCoordinatorRequest) -> Answer:
    wanted = _TYPES.get(request.key_type)
    if wanted is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no key type {request.key_type}")
    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"this broker does not serve {wanted} yet")


def _refuse(request: FindCoordinatorRequest, error: KafkaError) -> FindCoordinatorResponse:
    """Each version finds its own part of the answer."""
    code = int(error.code)
    return FindCoordinatorResponse(
        error_code=code,
        error_message=error.detail,
        node_id=NOBODY,
        port=NOBODY,
        coordinators=[
            Coordinator(
                key=key, node_id=NOBODY, port=NOBODY, error_code=code, error_message=error.detail
            )
            for key in request.coordinator_keys
        ],
    )


HANDLER = Handler(api_key=ApiKey.FIND_COORDINATOR, versions=VERSIONS, handle=handle, refuse=_refuse)
