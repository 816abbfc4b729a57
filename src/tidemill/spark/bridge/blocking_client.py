"""Our asyncio client for blocking code: Spark calls a method and waits for it to return.

A `BlockingClient` owns an event loop that runs only inside a call of `run`; there is no thread. A
process keeps one client for each cluster that it uses (`client_for`): Python workers live for many
tasks, and an open connection saves each task a few round trips.

The loop stands still between calls. A connection that breaks meanwhile is noticed at the next call,
which fails once and is retried: `run` retries until the caller's limits are reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, final

from tidemill.client.network.cluster_client import Backoff, ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import KafkaError
from tidemill.core.loop.event_loop import new_event_loop
from tidemill.core.net import AsyncioNet

__all__ = ["Address", "BlockingClient", "RetryLimits", "client_for", "drop_client"]

T = TypeVar("T")

_CLIENTS_MAX = 8
"""Clusters that one process keeps connections to; beyond that, the oldest client is closed."""


@final
@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a cluster; the key that clients are kept by."""

    bootstrap: tuple[Endpoint, ...]
    client_id: str
    request_timeout_ms: int


@final
@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How long lost connections and transient errors are retried."""

    timeout_ms: int
    attempts_max: int | None = None
    interval_ms: int | None = None


@final
class BlockingClient:
    """Blocking access to one cluster."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._clusters: list[ClusterClient] = []
        self.cluster = self.new_cluster()

    def new_cluster(self) -> ClusterClient:
        """A second set of connections, for requests that wait at the broker; metadata is shared."""
        made = ClusterClient(
            AsyncioNet(),
            self._address.bootstrap,
            client_id=self._address.client_id,
            request_timeout_s=self._address.request_timeout_ms / 1000,
        )
        if self._clusters:
            made.metadata = self._clusters[0].metadata
        self._clusters.append(made)
        return made

    def run(
        self, work: Callable[[ClusterClient], Coroutine[Any, Any, T]], limits: RetryLimits
    ) -> T:
        """Do `work`, and retry it after a transient error until the limits are reached."""
        return self._runner.run(self._retry(work, limits))

    def run_once(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that retries by itself."""
        return self._runner.run(work)

    def pause(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        """Close every connection. The loop runs once more: uvloop cannot close with open ones."""
        for cluster in self._clusters:
            cluster.close()
        self.pause(0)
        self._runner.close()

    async def _retry(
        self, work: Callable[[ClusterClient], Coroutine[Any, Any, T]], limits: RetryLimits
    ) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limits.timeout_ms / 1000
        backoff = Backoff()
        attempts = 0
        while True:
            attempts += 1
            try:
                return await work(self.cluster)
            except (ClientError, KafkaError) as error:
                pause_s = (
                    backoff.next_s() if limits.interval_ms is None else limits.interval_ms / 1000
                )
                out_of_attempts = limits.attempts_max is not None and (
                    attempts > limits.attempts_max
                )
                late = loop.time() + pause_s > deadline
                if not _is_transient(error) or late or out_of_attempts:
                    raise
            await asyncio.sleep(pause_s)


def _is_transient(error: ClientError | KafkaError) -> bool:
    return isinstance(error, ClientError) or error.code.retriable


_clients: dict[Address, BlockingClient] = {}


def client_for(address: Address) -> BlockingClient:
    """The client of this process for a cluster, created at the first call."""
    client = _clients.get(address)
    if client is None:
        if len(_clients) >= _CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
        client = _clients[address] = BlockingClient(address)
    return client


def drop_client(address: Address) -> None:
    """Close a client after an error, so that the next task starts with new connections."""
    client = _clients.pop(address, None)
    if client is not None:
        client.close()
