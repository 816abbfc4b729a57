"""A broker's requests to another one, over one connection at a time.

It connects when it is first used, and again when the other broker is somewhere else. The outcome of
a request is one of three: an answer; a KafkaError with the link's own code, nothing was sent;
ClientError, it may have been done or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, final

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.net import Net
from tidemill.wire.message import Message

__all__ = ["CONNECT_S_MAX", "BrokerLink"]

R = TypeVar("R", bound=Message)

CONNECT_S_MAX = 2.0
"""For a connection, the wait for another caller's attempt included: a broker whose machine is dead
must not hold up what its successor would answer."""


@final
class BrokerLink:
    """The connection to one broker, if there is one."""

    def __init__(
        self,
        net: Net,
        find: Callable[[], Endpoint | None],
        *,
        client_id: str,
        name: str,
        refusal: ErrorCode,
    ) -> None:
        """`find` says where the broker is, None while it is not there; `name` is for messages."""
        self._net = net
        self._find = find
        self._client_id = client_id
        self._name = name
        self._refusal = refusal
        self._connection: BrokerConnection | None = None
        self._endpoint: Endpoint | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    async def request(
        self, message: Message, response_type: type[R], *, version: int, timeout_s: float
    ) -> R:
        """The broker's answer; the module's head has the three outcomes."""
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_S_MAX)):
                connection = await self._connected()
        except TimeoutError as error:
            raise self._unsent(f"{self._name} does not accept connections") from error
        return await connection.request(
            message, response_type, version=version, timeout_s=timeout_s
        )

    def close(self) -> None:
        """Drop the connection, also one that is being made; whoever asks is refused from now on."""
        self._is_closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connected(self) -> BrokerConnection:
        async with self._connecting:
            endpoint = self._find() if not self._is_closed else None
            connection = self._connection
            if connection is not None and connection.usable and endpoint == self._endpoint:
                return connection
            self._disconnect()
            if endpoint is None:
                raise self._unsent(f"{self._name} is not there at present")
            try:
                connection = await BrokerConnection.open(
                    self._net,
                    endpoint.host,
                    endpoint.port,
                    timeout_s=CONNECT_S_MAX,
                    client_id=self._client_id,
                )
            except ClientError as error:
                raise self._unsent(str(error)) from error
            if self._is_closed:
                connection.close()
                raise self._unsent("this broker stops")
            self._connection, self._endpoint = connection, endpoint
            return connection

    def _unsent(self, detail: str) -> KafkaError:
        return KafkaError(self._refusal, detail)
