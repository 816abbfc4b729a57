"""The logs of one broker, and the parts that append to them, copy them and maintain them."""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tidemill.broker.background import Loops
from tidemill.broker.peers import make_peer_links
from tidemill.broker.seams import Seams
from tidemill.client.network.controller_link import ControllerLink
from tidemill.client.network.peer_links import PeerLinks
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.loop.timers import LoopTimers
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.image.metadata_image import PartitionImage, controller_endpoint
from tidemill.metadata.log_end_survey import LogEndSurvey
from tidemill.metadata.log_size_survey import LogSizeSurvey
from tidemill.replication.flushing.flusher import Flusher
from tidemill.replication.flushing.journal_settler import JournalSettler
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.releaser import Releaser
from tidemill.replication.log_ends import LogEndAsker
from tidemill.replication.log_sizes import LogSizeAsker
from tidemill.replication.partition import Partition
from tidemill.replication.proposing.isr_proposals import IsrProposals
from tidemill.replication.proposing.isr_sender import IsrSender
from tidemill.replication.pulling.batch_asker import BatchAsker
from tidemill.replication.pulling.follower import Followers
from tidemill.replication.pulling.log_cutter import LogCutter
from tidemill.replication.pulling.lost_offsets import LostOffsets
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.directory.metadata_note import MetadataNote
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.journal.round_journal import JournalLimits
from tidemill.storage.state.producer_bound import ProducerLimits
from tidemill.upkeep.cleaner import Cleaner
from tidemill.upkeep.damage_watch import DamageWatch
from tidemill.upkeep.housekeeping import Housekeeping
from tidemill.upkeep.mend_attempts import MendTools
from tidemill.upkeep.mender import Mender
from tidemill.upkeep.room_watch import RoomWatch
from tidemill.upkeep.stray_logs import StrayLogs

__all__ = [
    "DataPlane",
    "build_data_plane",
    "lag_s_max",
    "make_data_directory",
    "obey_lag_limit",
    "open_logs",
]

log = logging.getLogger(__name__)

LOGS_DIRECTORY = "logs"
SESSIONS_BEHIND_MIN = 2

RoleChanged = Callable[[Partition, PartitionImage], None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlane:
    """One data directory, the partitions on it, and the loops that serve them."""

    directory: LogDirectory
    flusher: Flusher
    settler: JournalSettler
    replicas: ReplicaManager
    followers: Followers
    isr_proposals: IsrProposals
    housekeeping: Housekeeping
    cleaner: Cleaner
    mender: Mender
    damage_watch: DamageWatch
    stray_logs: StrayLogs
    hold_host: HoldHost
    releaser: Releaser
    room_watch: RoomWatch
    controller: ControllerLink
    """For proposals of in-sync sets; other requests have a connection of their own."""
    log_end_links: PeerLinks
    log_size_links: PeerLinks
    batch_links: PeerLinks
    survey: LogEndSurvey
    log_sizes: LogSizeSurvey

    def loops(self) -> Loops:
        yield "room", self.room_watch.run()
        yield "flusher", self.flusher.run()
        yield "journal", self.settler.run()
        yield "in-sync sets", self.isr_proposals.run()
        yield "retention", self.housekeeping.run_retention()
        yield "purges", self.housekeeping.run_purges()
        yield "openings", self.housekeeping.run_openings()
        yield "checkpoints", self.housekeeping.run_checkpoints()
        yield "scrub", self.damage_watch.run()
        yield "mender", self.mender.run()
        yield "cleaner", self.cleaner.run()
        yield "stray logs", self.stray_logs.run()
        yield "releaser", self.releaser.run()
        yield "replays of holds", self.releaser.run_replays()
        yield "files of holds", self.releaser.run_writes()
        yield "carries of holds", self.releaser.run_carries()
        yield "log ends", self.survey.run()
        yield "log sizes", self.log_sizes.run()

    def close_links(self) -> None:
        """End the connections to other brokers."""
        self.controller.close()
        self.log_end_links.close()
        self.log_size_links.close()
        self.batch_links.close()


def make_data_directory(disk: Disk, path: str) -> None:
    """Make the directory and its parents so that a power loss cannot undo it."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = posixpath.dirname(path)
    for made in reversed(missing):
        disk.make_directories(made)
        disk.sync_directory(posixpath.dirname(made) or ".")


async def open_logs(
    config: BrokerConfig,
    seams: Seams,
    *,
    cluster_id: str,
    open_files_max: int,
    lock: DiskFile | None = None,
) -> LogDirectory:
    """Lock, check and recover the logs; in a thread, because recovery may read gigabytes.

    `lock`: that of the directory, if this process has it already.
    """
    now_ms = seams.clock.wall_ms()
    directory = await seams.disk.run(
        lambda: LogDirectory.open(
            seams.disk,
            f"{config.data_dir}/{LOGS_DIRECTORY}",
            cluster_id=cluster_id,
            broker_id=config.node_id,
            rng=seams.rng,
            now_ms=now_ms,
            files_max=open_files_max,
            producers=ProducerLimits(
                expiration_ms=config.producer_id_expiration_ms,
                entries_max=config.producer_ids_max,
            ),
            journal=JournalLimits.of_bytes(config.flush_journal_bytes),
            lock=lock,
        )
    )
    report = directory.report
    if not report.was_clean and report.logs_loaded:
        scanned = f"{report.logs_loaded} logs, {report.scanned_bytes} bytes scanned"
        replayed = f"{report.replayed.written_bytes} bytes restored from the journal"
        log.warning("the last end was not clean: recovered %s, %s", scanned, replayed)
    for line in report.lines():
        log.error("%s", line)
    return directory


def lag_s_max(config: BrokerConfig) -> float:
    """After how long behind a follower leaves the in-sync set.

    A leader that was moved away knows it within two sessions, and marks wait for it as long as it
    is in the set.
    """
    sessions_ms = SESSIONS_BEHIND_MIN * config.zookeeper.session_timeout_ms
    least_ms = sessions_ms if config.zookeeper.connect else 0
    return max(config.replica_lag_time_max_ms, least_ms) / 1000


def obey_lag_limit(replicas: ReplicaManager, live: LiveConfig) -> None:
    """Let leaders go by the configured limit, also when it changes."""

    def apply() -> None:
        replicas.broker_epochs.lag_s_max = lag_s_max(live.current)

    apply()
    live.subscribe(apply)


def build_data_plane(
    config: BrokerConfig,
    seams: Seams,
    cluster: Cluster,
    directory: LogDirectory,
    *,
    supervisor: Supervisor,
    telemetry: Telemetry,
    timers: LoopTimers,
    role_changed: RoleChanged,
) -> DataPlane:
    """Everything over `directory`; `role_changed` hears of each role that a partition takes."""
    disk, clock = seams.disk, seams.clock
    log_changes = asyncio.Lock()
    flusher = Flusher(disk, directory.dirty, clock=clock, telemetry=telemetry)
    settler = JournalSettler(disk, directory, flusher, clock=clock, telemetry=telemetry)
    cutter = LogCutter(disk, flusher, settler=settler, log_changes=log_changes, fail=directory.fail)
    followers = Followers(
        config.node_id,
        seams.net,
        clock=clock,
        cutter=cutter,
        lost_offsets=LostOffsets(disk, clock=clock, log_changes=log_changes),
        supervisor=supervisor,
        broker=lambda broker_id: cluster.image.brokers.get(broker_id),
        broker_epoch=lambda: cluster.broker_epoch,
        catch_up_rate=lambda: cluster.live.current.follower_replication_throttled_rate,
        checkpoint=lambda: housekeeping.write_checkpoint(),
        unclean_epoch=lambda one: None if one.image is None else one.image.unclean_epoch,
        vouches=cluster.lease.vouches,
    )

    def follow_and_tell(partition: Partition, image: PartitionImage) -> None:
        followers.role_changed(partition, image)
        role_changed(partition, image)

    room = DiskRoom(directory.path)
    hold_host = HoldHost(clock)
    replicas = ReplicaManager(
        config.node_id,
        directory,
        flusher,
        clock=clock,
        followed=follow_and_tell,
        unfollow=followers.leave,
        follower_flushed=followers.flushed,
        lease=cluster.lease,
        broker_epoch=lambda: cluster.broker_epoch,
        is_vouched=cluster.lease.ends_by_clock,
        hold_host=hold_host,
        room=room,
    )
    obey_lag_limit(replicas, cluster.live)

    def tell_start(name: TopicPartition) -> None:
        partition = replicas.find(*name)
        if partition is not None:
            followers.start_moved(partition)

    housekeeping = Housekeeping(
        disk,
        directory,
        replicas,
        clock=clock,
        flusher=flusher,
        log_changes=log_changes,
        config=cluster.live,
        note=MetadataNote(disk, config.data_dir, lambda: cluster.version),
        start_moved=tell_start,
    )
    flusher.subscribe(replicas.log_flushed)
    link = ControllerLink(
        seams.net, lambda: controller_endpoint(cluster.image), client_id="in-sync sets"
    )
    sender = IsrSender(cluster, link, clock=clock, lag_s=lambda: replicas.broker_epochs.lag_s_max)
    log_end_links = make_peer_links(seams, cluster, "log ends")
    cluster.survey.ask = LogEndAsker(cluster, replicas, log_end_links).ask
    log_size_links = make_peer_links(seams, cluster, "log sizes")
    cluster.log_sizes.ask = LogSizeAsker(config.node_id, replicas, log_size_links).ask
    batch_links = make_peer_links(seams, cluster, "mending")
    tools = MendTools(
        disk=disk,
        directory=directory,
        telemetry=telemetry,
        log_changes=log_changes,
        room=room,
        ask=BatchAsker(batch_links).ask,
    )
    mender = Mender(
        tools,
        replicas,
        broker_id=config.node_id,
        clock=clock,
        cutter=cutter,
        released=followers.released,
        last_end_is_counted=lambda: cluster.last_end_is_counted,
    )
    directory.on_failure = _take_offline(replicas, cluster)
    return DataPlane(
        directory=directory,
        flusher=flusher,
        settler=settler,
        replicas=replicas,
        followers=followers,
        isr_proposals=IsrProposals(
            replicas, sender.send, clock=clock, lease=cluster.lease, line=sender
        ),
        housekeeping=housekeeping,
        cleaner=Cleaner(
            disk,
            directory,
            replicas,
            clock=clock,
            rng=seams.rng,
            telemetry=telemetry,
            config=cluster.live,
            log_changes=log_changes,
            room=room,
        ),
        mender=mender,
        damage_watch=DamageWatch(disk, directory, mender, clock=clock),
        stray_logs=StrayLogs(directory, replicas.pending_logs, cluster.own_logs),
        hold_host=hold_host,
        releaser=Releaser(hold_host, disk, clock=clock, timers=timers, telemetry=telemetry),
        room_watch=RoomWatch(
            disk,
            directory.path,
            room,
            clock=clock,
            telemetry=telemetry,
            config=cluster.live,
        ),
        controller=link,
        log_end_links=log_end_links,
        log_size_links=log_size_links,
        batch_links=batch_links,
        survey=cluster.survey,
        log_sizes=cluster.log_sizes,
    )


def _take_offline(replicas: ReplicaManager, cluster: Cluster) -> Callable[[StorageFault], None]:
    def failed(fault: StorageFault) -> None:
        log.critical("the data directory is offline: %s", fault)
        replicas.go_offline()
        cluster.disk_failed()

    return failed
