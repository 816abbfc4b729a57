"""Connections to the brokers of one cluster, opened when needed, and the cluster's metadata.

A connection answers in order, so a parked Fetch delays every request sent after it (T8). A client
that waits long therefore has its own `ClusterClient`: a consumer, a producer and an admin do not
share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar, final

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import BrokerUnreachable, ClientError, check
from tidemill.client.network.metadata_cache import MetadataCache, TopicInfo
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.net import Net
from tidemill.wire.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidemill.wire.message import Message

__all__ = ["Backoff", "ClusterClient", "retry_refusals"]

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_ATTEMPTS_MAX = 12
"""Attempts while the cluster changes and refuses: about nine seconds, a session and an election."""


@final
class Backoff:
    """Growing pauses between attempts."""

    FIRST_S = 0.05
    LONGEST_S = 1.0

    def __init__(self) -> None:
        self._next_s = self.FIRST_S

    def next_s(self) -> float:
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self.LONGEST_S)
        return pause_s

    def reset(self) -> None:
        self._next_s = self.FIRST_S


@final
class ClusterClient:
    """Connects to every broker of a cluster. Close it, or use it as a context manager."""

    def __init__(
        self,
        net: Net,
        bootstrap: Sequence[tuple[str, int]],
        *,
        client_id: str = "tidemill",
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 30.0,
    ) -> None:
        self.metadata = MetadataCache()
        self.request_timeout_s = request_timeout_s
        self._net = net
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        """By address; at most one for each broker and bootstrap address."""
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- connections -----------------------------------------------------------------------------

    async def connection(self, broker_id: int) -> BrokerConnection:
        """A usable connection to one broker; KafkaError if the cluster has no such broker."""
        broker = self.metadata.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id}")
        return await self._connect(broker.host, broker.port)

    async def any_connection(self) -> BrokerConnection:
        """A usable connection to any broker; an open, idle one is preferred."""
        usable = [connection for connection in self._connections.values() if connection.usable]
        if usable:
            return min(usable, key=lambda connection: connection.in_flight)
        known = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        failures: list[str] = []
        for host, port in dict.fromkeys([*known, *self._bootstrap]):
            try:
                return await self._connect(host, port)
            except ClientError as error:
                failures.append(str(error))
        raise BrokerUnreachable("; ".join(failures) or "there is no address to connect to")

    async def _connect(self, host: str, port: int) -> BrokerConnection:
        async with self._opening:
            connection = self._connections.get((host, port))
            if connection is None or not connection.usable:
                connection = await BrokerConnection.open(
                    self._net,
                    host,
                    port,
                    timeout_s=self._connect_timeout_s,
                    client_id=self._client_id,
                )
                self._connections[host, port] = connection
            return connection

    # --- metadata --------------------------------------------------------------------------------

    async def refresh(self, topics: Iterable[str] | None, *, auto_create: bool = False) -> None:
        """Ask any broker about some topics; None: about all; empty: only about the brokers."""
        connection = await self.any_connection()
        asked = None if topics is None else [MetadataRequestTopic(name=t) for t in sorted(topics)]
        response = await connection.request(
            MetadataRequest(topics=asked, allow_auto_topic_creation=auto_create),
            MetadataResponse,
            timeout_s=self.request_timeout_s,
        )
        check(response.error_code, "the broker cannot describe the cluster")
        if topics is None:
            self.metadata.topics.clear()
        self.metadata.apply(response)

    async def topic(self, name: str, *, auto_create: bool = False) -> TopicInfo:
        """A topic with leaders; asks again until the cluster has chosen them (T15)."""

        async def ask() -> TopicInfo:
            await self.refresh([name], auto_create=auto_create)
            info = self.metadata.topic(name)
            if all(partition.leader < 0 for partition in info.partitions.values()):
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name}")
            return info

        passing = {ErrorCode.LEADER_NOT_AVAILABLE}
        if auto_create:
            passing.add(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await retry_refusals(ask, passing)

    # --- requests --------------------------------------------------------------------------------

    async def ask_any(self, message: Message, response_type: type[R]) -> R:
        """Send a request that every broker can answer."""
        connection = await self.any_connection()
        return await connection.request(message, response_type, timeout_s=self.request_timeout_s)

    async def ask_broker(self, broker_id: int, message: Message, response_type: type[R]) -> R:
        """Send a request to one broker."""
        connection = await self.connection(broker_id)
        return await connection.request(message, response_type, timeout_s=self.request_timeout_s)

    async def ask_controller(self, message: Message, response_type: type[R]) -> R:
        """Send a request to the broker that Metadata names as controller (T18).

        If that one is dead, any other takes the request: it passes it on to the next controller.
        """
        if self.metadata.controller_id not in self.metadata.brokers:
            await self.refresh([])
        try:
            connection = await self.connection(self.metadata.controller_id)
        except BrokerUnreachable:  # nothing was sent
            connection = await self.any_connection()
        return await connection.request(message, response_type, timeout_s=self.request_timeout_s)


async def retry_refusals(attempt: Callable[[], Awaitable[T]], passing: Iterable[ErrorCode]) -> T:
    """Repeat `attempt`, a bounded number of times, while it is refused with one of `passing`."""
    backoff = Backoff()
    codes = frozenset(passing)
    for _ in range(_ATTEMPTS_MAX):
        try:
            return await attempt()
        except KafkaError as refusal:
            if refusal.code not in codes:
                raise
        await asyncio.sleep(backoff.next_s())
    return await attempt()
