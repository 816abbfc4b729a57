"""What the router keeps of one client: its connections to owners, and fetches that wait there."""

from __future__ import annotations

from typing import final

from tidemill.core.config.endpoint import Endpoint
from tidemill.core.limits import ROUTED_BYTES_MAX, ROUTED_FETCH_BYTES_MAX, ROUTED_REFUSED_MAX
from tidemill.metadata.image.metadata_image import BrokerImage
from tidemill.replication.refused_batches import RefusedTotal
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.request.context import ANY_ADDRESS
from tidemill.server.request.services import Services
from tidemill.server.routing.producer_order import ProducerOrder
from tidemill.server.routing.routed_fetch import WaitingFetches
from tidemill.server.routing.upstream import Upstream, UpstreamBudget

__all__ = ["ClientMemory", "RoutedClient", "RoutedResources"]


@final
class RoutedResources:
    """What all routed clients share."""

    def __init__(self, services: Services, *, connections_max: int) -> None:
        self.services = services
        self.budget = UpstreamBudget(connections_max)
        self.refused_total = RefusedTotal(ROUTED_REFUSED_MAX)
        self.memory = MemoryPool(ROUTED_BYTES_MAX, lends=True)
        """For requests on their way to owners."""
        self.fetch_memory = MemoryPool(ROUTED_FETCH_BYTES_MAX, lends=True)
        """Apart, for fetches that wait and for what came of them: a consumer that is busy with its
        last records leaves the next ones here, and must not keep producers from sending."""


@final
class ClientMemory:
    """What one client's requests hold of a pool."""

    __slots__ = ("_held_bytes", "_pool")

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._held_bytes = 0

    def try_take(self, size_bytes: int) -> bool:
        """Count a request until `give`. Only the single one of a client may be over the limit."""
        if self._held_bytes and size_bytes > self._pool.free_bytes:
            return False
        if not self._pool.try_take(size_bytes, self):
            return False
        self._held_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._pool.give(size_bytes, None if self._held_bytes else self)


@final
class RoutedClient:
    """One connection of a client, as the router knows it."""

    def __init__(self, resources: RoutedResources, client_id: str) -> None:
        self._resources = resources
        self._client_id = client_id
        self.memory = ClientMemory(resources.memory)
        self.fetch_memory = ClientMemory(resources.fetch_memory)
        self.order = ProducerOrder(resources.refused_total)
        self._upstreams: dict[int, Upstream] = {}
        """By broker; bounded by the brokers of the cluster."""
        self.fetches = WaitingFetches(
            resources.fetch_memory, resources.services.clock, self._new_upstream
        )

    def upstream(self, broker_id: int) -> Upstream:
        """The connection to an owner for everything but fetches, which wait there."""
        found = self._upstreams.get(broker_id)
        if found is None:
            found = self._upstreams[broker_id] = self._new_upstream(broker_id)
        return found

    def close(self) -> None:
        for one in self._upstreams.values():
            one.close()
        self.fetches.close()
        self.order.end()

    def _new_upstream(self, broker_id: int) -> Upstream:
        resources = self._resources
        services = resources.services

        def find() -> Endpoint | None:
            broker = services.cluster.image.brokers.get(broker_id)
            return None if broker is None else _client_endpoint(broker)

        return Upstream(
            services.net,
            services.supervisor,
            resources.budget,
            find,
            client_id=self._client_id,
        )


def _client_endpoint(broker: BrokerImage) -> Endpoint:
    """Where clients reach a broker; one that listens everywhere is this one, or on this host."""
    if broker.host in ANY_ADDRESS:
        return Endpoint("127.0.0.1", broker.port)
    return Endpoint(broker.host, broker.port)
