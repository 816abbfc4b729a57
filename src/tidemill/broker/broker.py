"""One broker, from its configuration to serving, and back.

Start: the addresses for clients and for brokers are bound; the data directory is opened and
recovered; the broker joins the cluster, with new leader epochs if its last end was not clean;
partitions take the roles that the metadata image gives them; background loops run; connections are
accepted. Stop goes the same way back: no new connections, answers drained, loops ended, everything
flushed, the checkpoint and the mark of a clean end written, the session with the store closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import final

from tidemill.broker.cluster_news import ClusterNews
from tidemill.broker.coordinators import Coordinators
from tidemill.broker.data_plane import (
    LOGS_DIRECTORY,
    DataPlane,
    build_data_plane,
    make_data_directory,
    open_logs,
)
from tidemill.broker.seams import Seams
from tidemill.broker.serving import Serving, build_services
from tidemill.broker.store_choice import open_store
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config.broker_config import BrokerConfig, Endpoint
from tidemill.core.config.descriptor_plan import DescriptorPlan, plan_descriptors
from tidemill.core.config.keys import INT32_MAX
from tidemill.core.errors import StoreUnavailable, UserError
from tidemill.core.loop.event_loop import report_broken_invariants
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.loop_watch import watch_loop
from tidemill.core.loop.pacing import run_steps
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.net import AsyncioNet, Net
from tidemill.core.rng import Rng, SystemRng
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.features.feature_levels import THIS_SOFTWARE, Software
from tidemill.metadata.image.metadata_image import MetadataImage, difference
from tidemill.metadata.store.coord import Coord
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.follower import Followers
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.server.connection.listener import Listener
from tidemill.storage.directory.directory_meta import owning_cluster
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.directory.metadata_note import forget_version, noted_version
from tidemill.storage.directory.store_note import check_store, note_store
from tidemill.storage.files.disk import Disk, DiskFile, OsDisk

__all__ = ["Broker"]

log = logging.getLogger(__name__)

HAND_OVER_S = 2.0
"""The controller answers in milliseconds; if all brokers stop, there may be none."""
HEARD_LOOK_S = 0.005


@final
class Broker:
    """The parts of one broker. The five seams may be replaced: a simulation brings its own."""

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
        directory_lock: DiskFile | None = None,
        software: Software = THIS_SOFTWARE,
        watches_loop: bool = True,
    ) -> None:
        """`descriptors_max` is what the process may open; None (in tests) sets no limit.

        `directory_lock`: that of the data directory, if this process has it (`standby.py`).
        `software`: what it says that it runs; a test says something else to mix versions.
        `watches_loop`: whether it measures how late the loop is; a simulated one never is.
        """
        if not __debug__:
            raise UserError("tidemill does not run under python -O: its assertions guard your data")
        self._descriptors = (
            plan_descriptors(descriptors_max, files_max=config.file_descriptors_max)
            if descriptors_max is not None
            else DescriptorPlan(INT32_MAX, INT32_MAX, config.file_descriptors_max)
        )
        self.config = config
        self.telemetry = Telemetry()
        self._directory_lock = directory_lock
        self._watches_loop = watches_loop
        self.failed = False
        self._failure_listener: Callable[[], None] = lambda: None
        self._seams = Seams(
            clock=clock or SystemClock(),
            net=net or AsyncioNet(),
            disk=disk or OsDisk(),
            rng=rng or SystemRng(),
        )
        self._supervisor = Supervisor(self._fail)
        self._timers = LoopTimers(self._seams.clock)
        self._listener = Listener(self._seams.net)
        self._internal_listener = Listener(self._seams.net)
        self._route_listener = Listener(self._seams.net) if config.route_endpoint else None
        self._store_path = config.store_path if coord is None else None
        """The file of the embedded store, if that is not given from outside."""
        self.cluster = Cluster(
            coord or open_store(config, self._seams.clock),
            config,
            self._seams.rng,
            clock=self._seams.clock,
            software=software,
        )
        self.cluster.lease.has_standby = directory_lock is not None
        self._coordinators = Coordinators(
            self._seams,
            self.cluster,
            self._timers,
            supervisor=self._supervisor,
            find_log=lambda name: self.replicas.find_log(*name),
        )

    @property
    def replicas(self) -> ReplicaManager:
        return self._data.replicas

    @property
    def directory(self) -> LogDirectory:
        return self._data.directory

    @property
    def followers(self) -> Followers:
        return self._data.followers

    @property
    def serving(self) -> Serving:
        return self._serving

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
        """Serve; the address that clients reach. UserError: something that a person must mend."""
        config = self.config
        self._stop_reports = report_broken_invariants(asyncio.get_running_loop(), self._fail)
        bound = await self._listener.bind(config.listen_endpoint)
        internal = await self._internal_listener.bind(
            config.internal_endpoint, option="tidemill.internal.listen"
        )
        if self._route_listener is not None and config.route_endpoint is not None:
            await self._route_listener.bind(config.route_endpoint, option="tidemill.route.listen")
        cluster_id, seen = await self._identify()
        directory = await open_logs(
            config,
            self._seams,
            cluster_id=cluster_id,
            # The map of a file holds a second descriptor.
            open_files_max=self._descriptors.files // 2,
            lock=self._directory_lock,
        )
        self._data = self._build_data_plane(directory)
        self._serving = self._build_serving()
        await self.cluster.start(
            config.advertised_endpoint(bound.port),
            unclean=not directory.started_clean,
            internal=internal,
            directory_id=directory.meta.directory_id,
            seen=seen,
        )
        await self._follow_image()
        self._spawn_loops()
        await self._serving.start(is_healthy=lambda: not self.failed)
        return bound

    async def _identify(self) -> tuple[str, tuple[int, int]]:
        """The cluster that the data directory must belong to, which remembers its store.

        Also the newest version of the metadata that an earlier life has noted; without logs there
        is nothing that an older store could make strays of.
        """
        disk, data_dir = self._seams.disk, self.config.data_dir
        connect = self.config.zookeeper.where

        def check() -> tuple[str, tuple[int, int]]:
            logs = f"{data_dir}/{LOGS_DIRECTORY}"
            make_data_directory(disk, data_dir)
            check_store(disk, data_dir, logs, connect=connect, store_path=self._store_path)
            own_id = owning_cluster(disk, logs)
            if not own_id:
                forget_version(disk, data_dir)
            return own_id, noted_version(disk, data_dir)

        own_id, seen = await disk.run(check)
        cluster_id = await self.cluster.identify(own_id)
        if connect:
            await disk.run(partial(note_store, disk, data_dir, connect))
        return cluster_id, seen

    def _build_data_plane(self, directory: LogDirectory) -> DataPlane:
        return build_data_plane(
            self.config,
            self._seams,
            self.cluster,
            directory,
            supervisor=self._supervisor,
            telemetry=self.telemetry,
            timers=self._timers,
            role_changed=self._coordinators.role_changed,
        )

    def _build_serving(self) -> Serving:
        services = build_services(
            self.config,
            self._seams,
            self.cluster,
            self._data,
            self._coordinators,
            supervisor=self._supervisor,
            telemetry=self.telemetry,
            timers=self._timers,
        )
        return Serving(
            self._listener,
            self._internal_listener,
            self._route_listener,
            services,
            self._data.directory,
            descriptors=self._descriptors,
            failed=self._fail,
        )

    async def _follow_image(self) -> None:
        """Take the roles that the image gives this broker, now and whenever it changes."""
        image = self.cluster.image
        known = difference(MetadataImage(cluster_id=image.cluster_id), image)
        # Nobody reads the store meanwhile: no change can come between.
        await run_steps(self.replicas.apply(known))
        self.cluster.subscribe_in_steps(self.replicas.apply)
        self.cluster.subscribe(self._coordinators.metadata_changed)
        self.cluster.subscribe_in_steps(ClusterNews(self.config.node_id).follow)

    def _spawn_loops(self) -> None:
        spawn = self._supervisor.spawn
        spawn("metadata", self.cluster.run())
        if self._watches_loop:
            spawn("loop watch", watch_loop(self._seams.clock, self.telemetry.loop_stall))
        for part in (self._data, self._coordinators, self._serving):
            for name, loop in part.loops():
                spawn(name, loop)

    # --- stop ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """The way back; ends within ten seconds."""
        await self._hand_over()
        await self._serving.stop()
        await self._data.flusher.finish()
        await self._supervisor.stop()
        self._coordinators.close()
        self._data.close_links()
        self._timers.stop()
        # Without the mark the next life says again that records may be missing (I14).
        await self._data.housekeeping.close(is_clean=self.cluster.last_end_is_counted)
        await self.cluster.close()
        self._stop_reports()

    async def _hand_over(self) -> None:
        """Let other brokers lead what they can lead, so that clients wait for nobody."""
        cluster = self.cluster
        if self.failed or cluster.has_left:
            return
        led = [partition for partition in self.replicas if partition.is_leader]
        deadline = asyncio.get_running_loop().time() + HAND_OVER_S
        try:
            async with asyncio.timeout_at(deadline):
                await cluster.leave()
                await cluster.wait_left()
        except (TimeoutError, StoreUnavailable):
            log.warning("no controller took over what this broker leads; it stops all the same")
        else:
            await self._wait_heard(led, deadline)

    async def _wait_heard(self, led: Sequence[Partition], deadline: float) -> None:
        """Fetch once from each successor: it is silent as long as this broker may still act."""
        if not self.cluster.lease.ends_by_clock:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while led := [one for one in led if not one.has_handed_over]:  # noqa: ASYNC110 - rare
                    await asyncio.sleep(HEARD_LOOK_S)

    async def abandon(self) -> None:
        """End as a killed process does, for tests: nothing is answered, flushed or marked."""
        self._serving.abort_connections()
        await self._supervisor.stop()
        self._coordinators.close()
        self._data.close_links()
        await self._serving.stop()
        self._timers.stop()
        self._data.directory.release_lock()
        self._stop_reports()
