"""What clients and other brokers reach: the listeners with the handlers, and the page for metrics.

The listeners for clients and for brokers serve the same APIs. A handler that is for brokers alone
asks its peer by which of them it came (`is_internal`). The one for clients that reach a single
address passes requests on (`server/routing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import final

from tidemill.broker.background import Loops
from tidemill.broker.coordinators import Coordinators
from tidemill.broker.data_plane import DataPlane
from tidemill.broker.seams import Seams
from tidemill.client.network.controller_link import ControllerLink
from tidemill.core.byte_rate import ByteRate
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.descriptor_plan import DescriptorPlan
from tidemill.core.limits import INTERNAL_DRAIN_DEADLINE_S, UPSTREAM_CONNECTIONS_MAX
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import controller_endpoint
from tidemill.metadata.producer_ids import ProducerIds
from tidemill.server.connection.cut_off import CutOff
from tidemill.server.connection.listener import Listener
from tidemill.server.connection.listener_resources import ClientDeadlines, ListenerResources
from tidemill.server.fetching.fetch_sessions import FetchSessions
from tidemill.server.fetching.parked_requests import ParkedRequests
from tidemill.server.handlers import HANDLERS
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.limits.quotas import Quotas
from tidemill.server.metrics.broker_metrics import render
from tidemill.server.metrics.http_page import HttpPage
from tidemill.server.request.authorizer import AllowAll
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.services import Services
from tidemill.server.routing.router import Router
from tidemill.storage.directory.log_directory import LogDirectory

__all__ = ["Serving", "build_services"]

log = logging.getLogger(__name__)

CUT_OFF_LOOK_S = 0.5


def build_services(
    config: BrokerConfig,
    seams: Seams,
    cluster: Cluster,
    data: DataPlane,
    coordinators: Coordinators,
    *,
    supervisor: Supervisor,
    telemetry: Telemetry,
    timers: LoopTimers,
) -> Services:
    """What handlers may use of the parts below them."""
    return Services(
        config=cluster.live,
        clock=seams.clock,
        rng=seams.rng,
        net=seams.net,
        disk=seams.disk,
        cluster=cluster,
        controller=ControllerLink(
            seams.net, lambda: controller_endpoint(cluster.image), client_id="forwarding"
        ),
        replicas=data.replicas,
        pending_logs=data.replicas.pending_logs,
        lost_leaders=data.followers.lost_leaders,
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        verifier=coordinators.verifier,
        markers=coordinators.markers,
        hanging=coordinators.hanging,
        marker_sender=coordinators.sender,
        checkpoint=data.housekeeping.write_checkpoint,
        telemetry=telemetry,
        authorizer=AllowAll(),
        timers=timers,
        fetch_sessions=FetchSessions(seams.rng, config.fetch_sessions_max),
        producer_ids=ProducerIds(cluster.reserve_producer_ids),
        quotas=Quotas(),
        response_memory=MemoryPool(config.response_memory_bytes),
        supervisor=supervisor,
        parked=ParkedRequests(asyncio.get_running_loop().call_soon, timers),
        catch_up_rate=ByteRate(lambda: cluster.live.current.leader_replication_throttled_rate),
    )


@final
class Serving:
    """The listeners with what their connections share, and the page beside them."""

    def __init__(
        self,
        listener: Listener,
        internal_listener: Listener,
        route_listener: Listener | None,
        services: Services,
        directory: LogDirectory,
        *,
        descriptors: DescriptorPlan,
        failed: Callable[[str, BaseException], None],
    ) -> None:
        config = services.config.static
        self._config = config
        self._services = services
        self._directory = directory
        self.listener = listener
        self.internal_listener = internal_listener
        self._route_listener = route_listener
        dispatcher = Dispatcher(HANDLERS)
        routes_max = 0
        if route_listener is not None:
            routes_max = min(UPSTREAM_CONNECTIONS_MAX, descriptors.connections // 2)
        self._routes_max = routes_max
        deadlines = ClientDeadlines(idle_s=config.connections_max_idle_ms / 1000)
        self.resources = ListenerResources(
            services,
            dispatcher,
            services.supervisor,
            connections_max=descriptors.connections - routes_max,
            deadlines=deadlines,
            failed=failed,
        )
        """Those of the listener for clients."""
        self.internal_resources = ListenerResources(
            services,
            dispatcher,
            services.supervisor,
            connections_max=descriptors.internal,
            deadlines=deadlines,
            failed=failed,
            clients=self.resources,
        )
        self._page: HttpPage | None = None

    def loops(self) -> Loops:
        yield "listener", self.listener.run()
        yield "internal listener", self.internal_listener.run()
        if self._route_listener is not None:
            yield "route listener", self._route_listener.run()
        if self._services.cluster.lease.ends_by_clock:
            yield "cut-off broker", self._watch_cut_off()

    async def start(self, *, is_healthy: Callable[[], bool]) -> None:
        """Accept connections, and serve the page if one is configured."""
        await self.internal_listener.serve(self.internal_resources)
        await self.listener.serve(self.resources)
        if self._route_listener is not None:
            await self._serve_routes(self._route_listener)
        endpoint = self._config.metrics_endpoint
        if endpoint is None:
            return
        self._page = HttpPage(
            self._services.net,
            {
                "/metrics": lambda: (200, render(self.resources)),
                "/healthz": lambda: (200, "ok\n") if is_healthy() else (503, "failed\n"),
                "/readyz": lambda: (200, "ready\n") if self.is_ready else (503, "not ready\n"),
            },
        )
        log.info("metrics on http://%s/metrics", await self._page.start(endpoint))

    async def _serve_routes(self, listener: Listener) -> None:
        router = Router(
            self._services,
            advertised=self._config.route_advertised_endpoint,
            connections_max=self._routes_max,
        )
        dispatcher = Dispatcher(router.routed(HANDLERS))
        await listener.serve(self.resources.routed(dispatcher, router.end))
        log.info("routes on %s", listener.address)

    @property
    def is_ready(self) -> bool:
        """Whether clients are served: admitted, in the cluster, and on a disk that works."""
        may_act = self._services.cluster.may_act
        return self.resources.admission.is_open and may_act and self._directory.failure is None

    async def _watch_cut_off(self) -> None:
        cut_off, admission = CutOff(), self.resources.admission
        while True:
            await asyncio.sleep(CUT_OFF_LOOK_S)
            was, now = admission.is_cut_off, self._services.clock.monotonic()
            is_now = cut_off.review(is_of_use=self._is_of_use(), now=now)
            admission.is_cut_off = is_now
            if is_now:
                for connection in list(admission.connections):
                    connection.abort()
            if is_now and not was:
                log.warning("cut off from the store: clients are sent to other brokers")

    def _is_of_use(self) -> bool:
        """Whether clients find here what they look for; see `cut_off.py`."""
        cluster = self._services.cluster
        if cluster.lease.is_held or len(cluster.image.brokers) < 2:
            return True
        return any(partition.is_vouched for partition in self._services.replicas)

    async def stop(self) -> None:
        """Accept no more connections, answer what was started, close.

        Clients first: with acks=all their answers wait for brokers that fetch from this one.
        """
        if self._page is not None:
            self._page.stop()
        if self._route_listener is not None:
            await self._route_listener.stop()
        await self.listener.stop()
        self._services.controller.close()
        await self.internal_listener.stop(INTERNAL_DRAIN_DEADLINE_S)

    def abort_connections(self) -> None:
        """Close every connection now, unanswered."""
        for resources in (self.resources, self.internal_resources):
            for connection in list(resources.admission.connections):
                connection.abort()
