"""Sends requests that only the controller can serve to it, whichever broker the client asked.

The request travels whole in an Envelope (KIP-590), with the name and address of the client, so that
the controller answers as if the client had asked it. Before the answer goes on to the client, this
broker has read what the controller wrote: who creates a topic here finds it here (T22).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple, final

from tidemill.client.network.errors import ClientError, check
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.server.request.context import AnyContext
from tidemill.server.request.services import TopicServices
from tidemill.wire.api_keys import API_SPECS, ApiKey, load
from tidemill.wire.generated.envelope import EnvelopeRequest, EnvelopeResponse
from tidemill.wire.headers import encode_request, parse_response_header
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader

__all__ = ["OWN", "Requester", "forward", "requester_of"]

ENVELOPE_VERSION = 0
TIMEOUT_S = 30.0
"""For the answer: a request that creates thousands of partitions takes seconds."""
NO_CONTROLLER_S_MAX = 5.0
"""How long a request waits while there is no controller: one is elected in a moment."""
RETRY_S = 0.1
LENGTH_BYTES = 4
RESPONSE_OBJECTS_MAX = 1_000_000


@final
class Requester(NamedTuple):
    """Who wants a request done."""

    principal: str
    client_address: str
    client_id: str


OWN = Requester("User:tidemill-broker", "", "tidemill-broker")
"""The broker itself."""


async def forward(
    services: TopicServices,
    api_key: ApiKey,
    request: Message,
    *,
    version: int,
    requester: Requester,
) -> Message:
    """The controller's answer.

    KafkaError NOT_CONTROLLER: nothing was done; REQUEST_TIMED_OUT: it may have been.
    """
    envelope = EnvelopeRequest(
        request_data=_frame(api_key, request, version, requester.client_id),
        request_principal=requester.principal.encode(),
        client_host_address=requester.client_address.encode(),
    )
    answer = await _sent(services, envelope)
    with suppress(StoreUnavailable):  # it is done; this broker hears of it when the store answers
        await services.cluster.read_newest()
    return _response(api_key, version, answer.response_data or b"")


def requester_of(context: AnyContext) -> Requester:
    """The client of a request, as the controller is told it."""
    return Requester(context.peer.principal, context.peer.client_address, context.client_id)


async def _sent(services: TopicServices, envelope: EnvelopeRequest) -> EnvelopeResponse:
    clock = services.clock
    give_up_at = clock.monotonic() + NO_CONTROLLER_S_MAX
    while True:
        try:
            answer = await services.controller.request(
                envelope, EnvelopeResponse, version=ENVELOPE_VERSION, timeout_s=TIMEOUT_S
            )
            check(answer.error_code, "the controller refuses the request")
        except ClientError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER or clock.monotonic() >= give_up_at:
                raise
        else:
            return answer
        await asyncio.sleep(RETRY_S)


def _frame(api_key: ApiKey, request: Message, version: int, client_id: str) -> bytes:
    chunks = encode_request(
        request,
        spec=API_SPECS[api_key],
        version=version,
        correlation_id=0,
        client_id=client_id,
    )
    return b"".join(chunks)[LENGTH_BYTES:]


def _response(api_key: ApiKey, version: int, frame: bytes) -> Message:
    _, position = parse_response_header(frame, spec=API_SPECS[api_key], version=version)
    reader = Reader(frame, RESPONSE_OBJECTS_MAX, position)
    response = load(api_key)[1].read(reader, version)
    reader.finish()
    return response
