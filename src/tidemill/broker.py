"""The composition root: builds every part of one broker, starts and stops them in order. No logic.

Start: address bound -> data directory opened and recovered -> metadata session, new leader epochs
if the last end was not clean -> partitions given their roles -> background loops -> connections
accepted. Stop is the same way back: no new connections, answers drained, loops ended, everything
flushed, the checkpoint and the mark of a clean end written, the session closed.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable
from typing import final

from tidemill.coordinators.group.group_coordinator import GroupCoordinator
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config.broker_config import BrokerConfig, Endpoint
from tidemill.core.errors import StorageFault, UserError
from tidemill.core.ids import BrokerId
from tidemill.core.loop.event_loop import report_broken_invariants
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.loop_watch import watch_loop
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.net import AsyncioNet, Net
from tidemill.core.rng import Rng, SystemRng
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import MetadataImage, PartitionImage, difference
from tidemill.metadata.producer_ids import ProducerIds
from tidemill.metadata.store.coord import Coord
from tidemill.metadata.store.sqlite_store import SqliteCoord
from tidemill.replication.flusher import Flusher
from tidemill.replication.follower import Followers
from tidemill.replication.isr_keeper import IsrKeeper
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.connection.admission import Deadlines, ListenerState
from tidemill.server.connection.listener import Listener
from tidemill.server.fetching.fetch_sessions import FetchSessions
from tidemill.server.fetching.parked_fetches import ReadyQueue
from tidemill.server.handlers import HANDLERS
from tidemill.server.limits.memory_pool import MemoryPool
from tidemill.server.limits.quotas import Quotas
from tidemill.server.metrics.broker_metrics import render
from tidemill.server.metrics.http_page import HttpPage
from tidemill.server.request.authorizer import AllowAll
from tidemill.server.request.dispatch import Dispatcher
from tidemill.server.request.services import Services
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import Disk, OsDisk
from tidemill.upkeep.cleaner import Cleaner
from tidemill.upkeep.housekeeping import Housekeeping

__all__ = ["Broker"]

log = logging.getLogger(__name__)

COORD_FILE = "coord.db"
LOGS_DIRECTORY = "logs"


@final
class Broker:
    """One broker. The five seams may be replaced: a simulation brings its own."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        net: Net | None = None,
        disk: Disk | None = None,
        rng: Rng | None = None,
        coord: Coord | None = None,
        descriptors_max: int | None = None,
    ) -> None:
        """`descriptors_max` is what the process may open; None if that needs no thought (tests)."""
        if not __debug__:
            raise UserError("tidemill does not run under python -O: its assertions guard your data")
        self.config = config
        self._connections_max, files = config.max_connections, config.file_descriptors_max
        if descriptors_max is not None:
            self._connections_max, files = config.descriptor_plan(descriptors_max)
        self._open_files_max = files // 2  # the map of a file holds a second descriptor
        self.telemetry = Telemetry()
        self.failed = False
        self._clock = clock or SystemClock()
        self._net = net or AsyncioNet()
        self._disk = disk or OsDisk()
        self._rng = rng or SystemRng()
        self._coord = coord
        self._page: HttpPage | None = None
        self._failure_listener: Callable[[], None] = lambda: None

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call `listener` when a part failed that the broker cannot go on without."""
        self._failure_listener = listener

    def _fail(self, part: str, error: BaseException) -> None:
        """Fail-stop: no part dies silently (R7)."""
        log.critical("%s failed, the broker stops", part, exc_info=error)
        self.failed = True
        self._failure_listener()

    # --- start -----------------------------------------------------------------------------------

    async def start(self) -> Endpoint:
        """Serve; the address that clients reach. UserError says what only a person can mend."""
        config = self.config
        self._supervisor = Supervisor(self._fail)
        loop = asyncio.get_running_loop()
        self._stop_reports = report_broken_invariants(loop, self._fail)
        self._timers = LoopTimers(self._clock)
        self._listener = Listener(self._net)
        bound = await self._listener.bind(config.listen_endpoint)
        _make_durable(self._disk, config.data_dir)
        coord = self._coord or SqliteCoord(f"{config.data_dir}/{COORD_FILE}")
        self.cluster = Cluster(coord, config, self._rng)
        await self._open_directory(await self.cluster.identify())
        self._build_replication()
        await self.cluster.start(
            config.advertised_endpoint(bound.port), unclean=not self._directory.started_clean
        )
        self._serve_image()
        self._spawn_loops()
        await self._listener.serve(self._listener_state())
        self._page = await self._serve_page()
        return bound

    async def _open_directory(self, cluster_id: str) -> None:
        """Lock, check and recover the data directory; away from the loop, it may take a while."""
        path, now_ms = f"{self.config.data_dir}/{LOGS_DIRECTORY}", self._clock.wall_ms()
        self._directory = await self._disk.run(
            lambda: LogDirectory.open(
                self._disk,
                path,
                cluster_id=cluster_id,
                broker_id=BrokerId(self.config.node_id),
                rng=self._rng,
                now_ms=now_ms,
                files_max=self._open_files_max,
            )
        )
        self._directory.on_failure = self._directory_failed
        report = self._directory.report
        if not report.was_clean and report.logs_loaded:
            scanned = f"{report.logs_loaded} logs, {report.scanned_bytes} bytes scanned"
            log.warning("the last end was not clean: recovered %s", scanned)
        for line in report.lines():
            log.error("%s", line)

    def _build_replication(self) -> None:
        broker_id, clock = self.config.node_id, self._clock
        self._flusher = Flusher(
            self._disk,
            self._directory.dirty,
            clock=clock,
            telemetry=self.telemetry,
            flushed=lambda log_: self.replicas.log_flushed(log_),
        )
        self._followers = Followers(
            broker_id,
            self._net,
            clock=clock,
            flusher=self._flusher,
            supervisor=self._supervisor,
            broker=lambda other: self.cluster.image.brokers.get(other),
        )
        self._groups = GroupCoordinator(
            self.config.groups,
            clock=clock,
            timers=self._timers,
            disk=self._disk,
            image=lambda: self.cluster.image,
        )
        self.replicas = ReplicaManager(
            broker_id,
            self._directory,
            self._flusher,
            clock=clock,
            followed=self._role_changed,
        )
        self._isr_keeper = IsrKeeper(self.replicas, self._propose_isr, clock=clock)

    def _role_changed(self, partition: Partition, image: PartitionImage) -> None:
        self._followers.role_changed(partition, image)
        self._groups.role_changed(partition.name, partition if partition.is_leader else None)

    def _directory_failed(self, fault: StorageFault) -> None:
        log.critical("the data directory is offline: %s", fault)
        self.replicas.go_offline()

    async def _propose_isr(self, partition: Partition, isr: tuple[int, ...]) -> None:
        image = partition.image
        assert image is not None
        await self.cluster.propose_isr(
            partition.topic_id,
            partition.name.partition,
            isr,
            leader_epoch=image.leader_epoch,
            partition_epoch=image.partition_epoch,
        )

    def _serve_image(self) -> None:
        """Take on the roles that the image gives us, now and whenever it changes."""
        image = self.cluster.image
        self.replicas.apply(difference(MetadataImage(cluster_id=image.cluster_id), image))
        self.cluster.subscribe(self.replicas.apply)
        self.cluster.subscribe(self._groups.metadata_changed)

    def _spawn_loops(self) -> None:
        spawn = self._supervisor.spawn
        housekeeping = Housekeeping(
            self._disk,
            self._directory,
            self.replicas,
            clock=self._clock,
            flusher=self._flusher,
            retention_interval_s=self.config.log_retention_check_interval_ms / 1000,
        )
        spawn("flusher", self._flusher.run())
        spawn("metadata", self.cluster.run())
        spawn("group coordinator", self._groups.runtime.run())
        spawn("in-sync sets", self._isr_keeper.run())
        spawn("retention", housekeeping.run_retention())
        spawn("openings", housekeeping.run_openings())
        spawn("checkpoints", housekeeping.run_checkpoints())
        spawn("scrub", housekeeping.run_scrub())
        spawn("cleaner", self._cleaner().run())
        spawn("loop watch", watch_loop(self._clock, self.telemetry.loop_stall))
        self._housekeeping = housekeeping

    def _cleaner(self) -> Cleaner:
        return Cleaner(
            self._disk,
            self._directory,
            self.replicas,
            clock=self._clock,
            rng=self._rng,
            telemetry=self.telemetry,
            config=self.config,
        )

    def _listener_state(self) -> ListenerState:
        config = self.config
        loop = asyncio.get_running_loop()
        services = Services(
            config=config,
            clock=self._clock,
            rng=self._rng,
            net=self._net,
            disk=self._disk,
            cluster=self.cluster,
            replicas=self.replicas,
            groups=self._groups,
            directory=self._directory,
            checkpoint=self._housekeeping.write_checkpoint,
            telemetry=self.telemetry,
            authorizer=AllowAll(),
            timers=self._timers,
            sessions=FetchSessions(self._rng, config.fetch_sessions_max),
            producer_ids=ProducerIds(self.cluster.reserve_producer_ids),
            quotas=Quotas(),
            response_memory=MemoryPool(config.response_memory_bytes),
            supervisor=self._supervisor,
            ready=ReadyQueue(loop.call_soon),
        )
        self._state = ListenerState(
            "PLAINTEXT",
            services,
            Dispatcher(HANDLERS),
            self._supervisor,
            connections_max=self._connections_max,
            deadlines=Deadlines(idle_s=config.connections_max_idle_ms / 1000),
            failed=self._fail,
        )
        self._supervisor.spawn("listener", self._listener.run())
        return self._state

    async def _serve_page(self) -> HttpPage | None:
        endpoint = self.config.metrics_endpoint
        if endpoint is None:
            return None
        page = HttpPage(
            self._net,
            {
                "/metrics": lambda: (200, render(self._state)),
                "/healthz": lambda: (503, "failed\n") if self.failed else (200, "ok\n"),
                "/readyz": self._readiness,
            },
        )
        log.info("metrics on http://%s/metrics", await page.start(endpoint))
        return page

    def _readiness(self) -> tuple[int, str]:
        ready = self._state.accepting and self.cluster.may_act and self._directory.failure is None
        return (200, "ready\n") if ready else (503, "not ready\n")

    # --- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """The way back; ends within ten seconds."""
        if self._page is not None:
            self._page.stop()
        await self._listener.stop()
        await self._flusher.finish()
        await self._supervisor.stop()
        self._timers.stop()
        await self._housekeeping.close()
        await self.cluster.close()
        self._stop_reports()


def _make_durable(disk: Disk, path: str) -> None:
    """Make a directory that a power loss cannot take away again, its parents included."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = posixpath.dirname(path)
    for made in reversed(missing):
        disk.make_directories(made)
        disk.sync_directory(posixpath.dirname(made) or ".")
