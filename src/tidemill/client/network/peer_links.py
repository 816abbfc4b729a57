"""A broker's requests to other brokers, over one connection to each.

The outcome is one of three: an answer; KafkaError BROKER_NOT_AVAILABLE, nothing was sent;
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

__all__ = ["PeerLinks"]

R = TypeVar("R", bound=Message)

CONNECT_S_MAX = 2.0
"""For a connection, the wait for another caller's attempt included."""


@final
class PeerLinks:
    """Connects to a broker when it is first asked, and again when it is somewhere else."""

    def __init__(self, net: Net, find: Callable[[int], Endpoint | None], *, client_id: str) -> None:
        """`find` says where brokers reach a broker; None while it is not alive."""
        self._net = net
        self._find = find
        self._client_id = client_id
        self._links: dict[int, _Link] = {}
        """By broker; bounded by the brokers that ever joined the cluster."""

    async def request(
        self,
        broker_id: int,
        message: Message,
        response_type: type[R],
        *,
        version: int,
        timeout_s: float,
    ) -> R:
        """The broker's answer; the module's head has the three outcomes."""
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_S_MAX)):
                connection = await self._connected(broker_id)
        except TimeoutError as error:
            raise _unavailable(f"broker {broker_id} does not accept connections") from error
        return await connection.request(
            message, response_type, version=version, timeout_s=timeout_s
        )

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    async def _connected(self, broker_id: int) -> BrokerConnection:
        link = self._links.setdefault(broker_id, _Link())
        async with link.connecting:
            endpoint = self._find(broker_id)
            connection = link.connection
            if connection is not None and connection.usable and endpoint == link.endpoint:
                return connection
            link.close()
            if endpoint is None:
                raise _unavailable(f"broker {broker_id} is not alive")
            try:
                connection = await BrokerConnection.open(
                    self._net,
                    endpoint.host,
                    endpoint.port,
                    timeout_s=CONNECT_S_MAX,
                    client_id=self._client_id,
                )
            except ClientError as error:
                raise _unavailable(str(error)) from error
            link.connection, link.endpoint = connection, endpoint
            return connection


@final
class _Link:
    """The connection to one broker, if there is one."""

    __slots__ = ("connecting", "connection", "endpoint")

    def __init__(self) -> None:
        self.connection: BrokerConnection | None = None
        self.endpoint: Endpoint | None = None
        self.connecting = asyncio.Lock()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def _unavailable(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, detail)
