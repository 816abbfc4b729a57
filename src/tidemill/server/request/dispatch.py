"""Finds the handler of a request, runs it, and turns its refusal into an answer.

HOT PATH: `find`, `start` and `encode` run once per request.
"""

from __future__ import annotations

from typing import final

from tidemill.core.errors import KafkaError
from tidemill.server.request.context import RequestContext
from tidemill.server.request.controller_forwarding import forward, requester_of
from tidemill.server.request.handler import Answer, Handler
from tidemill.server.request.services import Services
from tidemill.wire.api_keys import API_SPECS, ApiKey, load
from tidemill.wire.headers import RequestHeader, UnsupportedVersion, encode_response
from tidemill.wire.message import Message
from tidemill.wire.primitives import Buffer, Reader

__all__ = ["BoundHandler", "Dispatcher"]


@final
class BoundHandler:
    """A handler together with its wire form; made on the API's first request."""

    __slots__ = (
        "_by_controller",
        "_fast",
        "_request_class",
        "_spec",
        "first_version",
        "handler",
        "last_version",
    )

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.first_version, self.last_version = handler.versions
        self._fast = handler.fast
        self._by_controller = handler.by_controller
        self._spec = API_SPECS[handler.api_key]
        self._request_class, _ = load(handler.api_key)

    def start(
        self, context: RequestContext[Services], frame: memoryview, body_offset: int
    ) -> Answer:
        """Decode and run the first stage; a KafkaError becomes the API's refusal."""
        request = None
        if self._fast is not None:
            request = self._fast.try_read(frame, body_offset, context.version)
        if request is None:
            reader = Reader(frame, pos=body_offset)
            request = self._request_class.read(reader, context.version)
            reader.finish(self.handler.tail_bytes_max)
        context.size_bytes = len(frame)
        try:
            if self._by_controller and not context.services.cluster.is_controller:
                return self._pass_on(context, request)
            return self.handler.handle(context, request)
        except KafkaError as error:
            return self._refuse(context, request, error)

    async def _pass_on(self, context: RequestContext[Services], request: Message) -> Message:
        """The answer of the controller to this request."""
        try:
            return await forward(
                context.services,
                self.handler.api_key,
                request,
                version=context.version,
                requester=requester_of(context),
            )
        except KafkaError as error:
            return self._refuse(context, request, error)

    def _refuse(
        self, context: RequestContext[Services], request: Message, error: KafkaError
    ) -> Message:
        context.services.telemetry.count_error(error.code)
        return self.handler.refuse(request, error)

    def encode(self, response: Message, version: int, correlation_id: int) -> list[Buffer]:
        """The whole frame; record payloads are not copied."""
        if self._fast is not None:
            frame = self._fast.try_encode(response, version, correlation_id)
            if frame is not None:
                return [frame]
        return encode_response(
            response, spec=self._spec, version=version, correlation_id=correlation_id
        )


@final
class Dispatcher:
    """The handlers of this broker by API key."""

    def __init__(self, handlers: tuple[Handler, ...]) -> None:
        self._handlers = {int(handler.api_key): handler for handler in handlers}
        self._bound: dict[int, BoundHandler] = {}

    def find(self, header: RequestHeader) -> BoundHandler:
        """The handler of this request; UnsupportedVersion if there is none for its version."""
        api_key = header.api_key
        bound = self._bound.get(api_key)
        if bound is None and api_key in self._handlers:
            bound = self.bound(api_key)
        version = header.api_version
        if bound is None or not bound.first_version <= version <= bound.last_version:
            raise UnsupportedVersion(api_key, version, header.correlation_id)
        return bound

    def bound(self, api_key: ApiKey) -> BoundHandler:
        """The handler of an API that this broker serves."""
        bound = self._bound.get(api_key)
        if bound is None:
            bound = self._bound[api_key] = BoundHandler(self._handlers[api_key])
        return bound
