"""Envelope (58), version 0: a request that another broker passes on; served by the controller.

The answer is the answer to the request inside, made as if its client had asked here. Only the APIs
that the controller serves for all brokers may be inside.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import ErrorCode, ProtocolViolation
from tidemill.server.request.context import RequestContext
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.server.request.services import Services
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.envelope import EnvelopeRequest, EnvelopeResponse
from tidemill.wire.headers import parse_request_header
from tidemill.wire.message import Message

__all__ = ["make_handler"]

LENGTH_BYTES = 4
CORRELATION_ID = 0


@final
@dataclass(slots=True)
class _PassedOn:
    """The client of a request that another broker has passed on."""

    principal: str
    client_address: str
    server_endpoint: Endpoint
    is_internal: bool = True
    is_passed_on: bool = True
    is_librdkafka: bool = False


def make_handler(inside: Iterable[Handler]) -> Handler:
    """Build the handler; `inside` are the APIs that may be in an envelope."""
    dispatcher = Dispatcher(tuple(inside))

    def handle(context: RequestContext[Services], request: EnvelopeRequest) -> Answer:
        context.require_broker()
        return _opened(dispatcher, context, request)

    return Handler(
        api_key=ApiKey.ENVELOPE,
        versions=(0, 0),
        handle=handle,
        refuse=refuse_with_error_code(EnvelopeResponse),
        is_internal=True,
    )


async def _opened(
    dispatcher: Dispatcher, context: RequestContext[Services], request: EnvelopeRequest
) -> EnvelopeResponse:
    # Asked now, not when the request came: it has waited for its turn, and what was passed on once
    # is never passed on again.
    if not context.services.cluster.is_controller:
        return EnvelopeResponse(error_code=int(ErrorCode.NOT_CONTROLLER))
    frame = memoryview(request.request_data)
    try:
        header = parse_request_header(frame)
        bound = dispatcher.find(header)
        client = _PassedOn(
            (request.request_principal or b"").decode(),
            request.client_host_address.decode(),
            context.peer.server_endpoint,
        )
        inner = RequestContext(context.services, client, header.api_version, header.client_id or "")
        answer = bound.start(inner, frame, header.body_offset)
    except (ProtocolViolation, UnicodeDecodeError):
        return EnvelopeResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    if isinstance(answer, Coroutine):
        answer = await answer
    assert isinstance(answer, Message)
    chunks = bound.encode(answer, header.api_version, CORRELATION_ID)
    return EnvelopeResponse(response_data=b"".join(chunks)[LENGTH_BYTES:])
