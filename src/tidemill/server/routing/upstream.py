"""A routed client's connections to the brokers that own what it asks for.

Each client has connections of its own, made when they are needed: brokers answer a connection in
order, and the wait of one client must not be that of another. Requests to one owner leave in the
order in which the client sent them, also while the connection is being made. The outcome of each is
one of three: an answer; KafkaError, nothing was sent; ClientError, it may have been done or not.
Where one is not sent or gets no answer, those that wait behind it are not sent: they would overtake
it on the next connection, before anybody has noted what became of it.

The owners are reached as clients reach them: what a routed client may do is what a client may do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.net import Net
from tidemill.wire.message import Message

__all__ = ["Upstream", "UpstreamBudget"]

CONNECT_S_MAX = 2.0
IN_FLIGHT_MAX = 64
"""As many as a client's connection may have outstanding."""


@final
class UpstreamBudget:
    """How many connections all routed clients together have to owners."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self.open = 0

    def take(self) -> None:
        """KafkaError if there are too many."""
        if self.open >= self._connections_max:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "too many routed connections")
        self.open += 1

    def give(self) -> None:
        self.open -= 1


@final
@dataclass(slots=True)
class _Asked:
    """A request that waits to be sent."""

    request: Message
    response_type: type[Message] | None
    """None: it is never answered."""
    version: int
    timeout_s: float
    answer: asyncio.Future[Any]


@final
class Upstream:
    """One client's connection to one broker, and what waits to be sent on it."""

    def __init__(
        self,
        net: Net,
        supervisor: Supervisor,
        budget: UpstreamBudget,
        find: Callable[[], Endpoint | None],
        *,
        client_id: str,
    ) -> None:
        """`find` says where clients reach the broker; None while it is not alive."""
        self._net = net
        self._supervisor = supervisor
        self._budget = budget
        self._find = find
        self._client_id = client_id
        self._connection: BrokerConnection | None = None
        self._endpoint: Endpoint | None = None
        self._waiting: deque[_Asked] = deque()
        """Bounded by the client's connection, which has a bound of outstanding answers."""
        self._is_sending = False
        self._is_closed = False

    def ask(
        self,
        request: Message,
        response_type: type[Message] | None,
        *,
        version: int,
        timeout_s: float,
    ) -> asyncio.Future[Any]:
        """Send a request after those before it; its answer, or why there is none."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(self._ended)
        self._waiting.append(_Asked(request, response_type, version, timeout_s, answer))
        if not self._is_sending:
            self._is_sending = True
            self._supervisor.spawn("routed requests", self._send_all())
        return answer

    def close(self) -> None:
        """The client has gone: what it has sent still goes on, and its answers are dropped."""
        self._is_closed = True
        if not self._is_sending:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._budget.give()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                asked = self._waiting[0]
                try:
                    connection = await self._connected()
                    await connection.wait_room(asked.timeout_s)
                    if self._waiting and self._waiting[0] is asked:  # else it was refused meanwhile
                        _send(connection, asked)
                        self._waiting.popleft()
                except (KafkaError, ClientError) as error:
                    self._refuse_waiting(error)
        finally:
            self._is_sending = False
            if self._is_closed:
                self._disconnect()

    def _ended(self, answer: asyncio.Future[Any]) -> None:
        """Before whoever asked hears of it; they may have gone, so the exception is seen here."""
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, KafkaError | ClientError):
            self._refuse_waiting(error)

    def _refuse_waiting(self, error: KafkaError | ClientError) -> None:
        """None of them was sent. Without a connection, each would wait for one again, too."""
        while self._waiting:
            _refuse(self._waiting.popleft(), error)

    async def _connected(self) -> BrokerConnection:
        endpoint = self._find()
        connection = self._connection
        if endpoint is None:
            self._disconnect()
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the broker is not alive")
        if connection is not None and connection.usable and endpoint == self._endpoint:
            return connection
        self._disconnect()
        self._budget.take()
        try:
            connection = await BrokerConnection.open(
                self._net,
                endpoint.host,
                endpoint.port,
                timeout_s=CONNECT_S_MAX,
                client_id=self._client_id,
                in_flight_max=IN_FLIGHT_MAX,
            )
        except BaseException:
            self._budget.give()
            raise
        self._connection, self._endpoint = connection, endpoint
        return connection


def _send(connection: BrokerConnection, asked: _Asked) -> None:
    """Write one request; what is raised from here means that nothing was sent."""
    if asked.response_type is None:
        connection.send_unanswered_nowait(asked.request, version=asked.version)
        asked.answer.set_result(None)
        return
    came = connection.request_nowait(
        asked.request, asked.response_type, version=asked.version, timeout_s=asked.timeout_s
    )
    came.add_done_callback(lambda future: _pass_on(future, asked.answer))


def _refuse(asked: _Asked, error: KafkaError | ClientError) -> None:
    """Say that it was not sent."""
    if not isinstance(error, KafkaError):
        error = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error))
    if not asked.answer.done():
        asked.answer.set_exception(error)


def _pass_on(came: asyncio.Future[Any], answer: asyncio.Future[Any]) -> None:
    if answer.done():
        return
    error = came.exception()
    if error is None:
        answer.set_result(came.result())
    else:
        answer.set_exception(error)
