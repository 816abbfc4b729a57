"""The HTTP listener for monitoring: /metrics, /healthz, /readyz. Off without `metrics.listen`.

h11 parses the requests; each connection gets one answer and is closed. Only GET and HEAD of these
three paths are served, any other path is a 404 (deny by default, S50). A connection ends after ten
seconds at the latest, and holds at most one small request and one answer (S51).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast, final

import h11

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import UserError
from tidemill.core.limits import KIB
from tidemill.core.net import Net, ServerHandle

__all__ = ["HttpPage"]

REQUEST_BYTES_MAX = 16 * KIB
CONNECTIONS_MAX = 64
DEADLINE_S = 10.0

Route = Callable[[], tuple[int, str]]
"""Status and text."""


@final
class HttpPage:
    """Serves a fixed table of paths."""

    def __init__(self, net: Net, routes: dict[str, Route]) -> None:
        self._net = net
        self._routes = routes
        self._server: ServerHandle | None = None
        self._open: dict[_HttpConnection, None] = {}

    async def start(self, endpoint: Endpoint) -> Endpoint:
        try:
            self._server = await self._net.listen(
                lambda: _HttpConnection(self), endpoint.host, endpoint.port
            )
        except OSError as error:
            raise UserError(f"metrics.listen={endpoint}: {error.strerror or error}") from error
        await self._server.start_serving()
        return Endpoint(*self._server.address)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.abort()

    def admit(self, connection: _HttpConnection) -> bool:
        if len(self._open) >= CONNECTIONS_MAX:
            return False
        self._open[connection] = None
        return True

    def forget(self, connection: _HttpConnection) -> None:
        self._open.pop(connection, None)

    def answer(self, method: str, target: str) -> tuple[int, str]:
        route = self._routes.get(target.partition("?")[0])
        if route is None:
            return 404, "not found; there are " + ", ".join(sorted(self._routes)) + "\n"
        if method not in ("GET", "HEAD"):
            return 405, "only GET and HEAD\n"
        return route()


@final
class _HttpConnection(asyncio.Protocol):
    def __init__(self, page: HttpPage) -> None:
        self._page = page
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit it
        self._transport = transport
        if not self._page.admit(self):
            transport.abort()
            return
        self._deadline = asyncio.get_running_loop().call_later(DEADLINE_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._page.forget(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._respond(error.error_status_hint, "bad request\n")
            return
        if isinstance(event, h11.Request):
            method = event.method.decode("ascii")
            status, text = self._page.answer(method, event.target.decode("latin-1"))
            self._respond(status, text, only_headers=method == "HEAD")
        elif event is not h11.NEED_DATA:
            transport.close()

    def _respond(self, status: int, text: str, *, only_headers: bool = False) -> None:
        assert self._transport is not None
        body = text.encode()
        headers = [
            ("content-type", "text/plain; version=0.0.4; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            ("x-content-type-options", "nosniff"),
        ]
        head = self._http.send(h11.Response(status_code=status, headers=headers))
        self._transport.write((head or b"") + (b"" if only_headers else body))
        self._transport.close()
