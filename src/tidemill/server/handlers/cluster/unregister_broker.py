"""UnregisterBroker (64), version 0: forget a broker that is gone for good; by the controller.

A broker that is registered, or that holds replicas, is refused: drain it first, then stop it.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.server.request.authorizer import Operation, cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

__all__ = ["HANDLER"]


def handle(context: ClusterContext, request: UnregisterBrokerRequest) -> Answer:
    context.require(Operation.ALTER, cluster())
    return _unregister(context, request.broker_id)


async def _unregister(context: ClusterContext, broker_id: int) -> UnregisterBrokerResponse:
    try:
        await context.services.cluster.unregister_broker(broker_id)
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=int(error.code), error_message=error.detail)
    except StoreUnavailable as error:
        code = int(ErrorCode.REQUEST_TIMED_OUT)
        return UnregisterBrokerResponse(error_code=code, error_message=str(error))
    return UnregisterBrokerResponse(error_message=None)


HANDLER = Handler(
    api_key=ApiKey.UNREGISTER_BROKER,
    versions=(0, 0),
    handle=handle,
    refuse=refuse_with_error_code(UnregisterBrokerResponse),
    by_controller=True,
)
