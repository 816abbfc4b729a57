"""The log of a follower is cut in threads, and nothing sees half of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.support.batches import append, batch, drain, fill
from tests.support.directories import ORDERS, SMALL, TOPIC_ID, flushed, log_of, opened, stored
from tests.support.loop_watch import LoopWatch
from tests.support.memory_peer import simulated
from tests.support.partitions import NOW_MS, OWN, SECOND, Flushes, image, settings
from tidemill.core.errors import KafkaError, StorageFault
from tidemill.core.loop.steps import finished
from tidemill.core.rng import SeededRng
from tidemill.core.telemetry import Telemetry
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.replication.flushing.flusher import Flusher
from tidemill.replication.flushing.journal_settler import JournalSettler
from tidemill.replication.partition import Partition
from tidemill.replication.pulling import log_cutter
from tidemill.replication.pulling.log_cutter import LogCutter
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.files.disk_work import DiskWork
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk, SimulatedCrash

LARGE = bytes(40_000)
ROOMY = replace(SMALL, segment_bytes=400_000)
TURNS = 20


class Place:
    """A follower whose log is on a simulated disk, and its cutter."""

    def __init__(self, batches: int = 20, *, value: bytes = b"v") -> None:
        self.disk = SimDisk()
        self.directory = opened(self.disk)
        self.log = self.directory.create_log(ORDERS, TOPIC_ID, ROOMY if value == LARGE else SMALL)
        self.written = fill(self.log, batches, value=value)
        flushed(self.directory)
        self.directory.write_checkpoint({ORDERS: batches})
        self.partition = Partition(
            ORDERS,
            TOPIC_ID,
            self.log,
            broker_id=OWN,
            settings=settings(),
            flushes=Flushes(),
            high_watermark=batches,
        )
        self.partition.become_follower(image(leader=SECOND))
        self.flusher = Flusher(
            self.disk, self.directory.dirty, clock=ManualClock(), telemetry=Telemetry()
        )
        self.log_changes = asyncio.Lock()
        self.settler = JournalSettler(
            self.disk,
            self.directory,
            self.flusher,
            clock=ManualClock(),
            telemetry=Telemetry(),
        )
        self.cutter = LogCutter(
            self.disk,
            self.flusher,
            settler=self.settler,
            log_changes=self.log_changes,
            fail=self.directory.fail,
        )
        self.is_wanted = True

    async def truncate(self, offset: int) -> None:
        await self.cutter.cut(
            self.partition.as_follower,
            lambda: self.log.plan_truncation(offset),
            is_wanted=lambda: self.is_wanted,
        )

    async def restart(self, offset: int) -> None:
        await self.cutter.cut(
            self.partition.as_follower,
            lambda: self.partition.as_follower.plan_restart(offset),
            is_wanted=lambda: self.is_wanted,
        )


class Gate:
    """Lets the threads of a disk begin one operation at a time."""

    def __init__(self, disk: SimDisk) -> None:
        self._run = disk.run
        self._may_go = asyncio.Semaphore(0)
        disk.run = self._gated  # type: ignore[method-assign,assignment]

    async def _gated(self, operation: object, work: DiskWork = DiskWork.READ) -> object:
        await self._may_go.acquire()
        return await self._run(operation, work)  # type: ignore[arg-type]

    async def let(self, operations: int = 1) -> None:
        for _ in range(operations):
            self._may_go.release()
        await turns()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("value", [b"v", LARGE])
@pytest.mark.parametrize("has_views", [False, True])
def test_a_cut_waits_for_the_disk_in_threads_only(run, value, has_views):
    place = Place(value=value)
    if has_views:
        place.log.read(0, max_bytes=1 << 20, end_offset=20)
    watch = LoopWatch(place.disk)
    run(place.truncate(7))
    assert watch.slow_calls == []
    assert place.log.log_end_offset == 7
    assert {"truncate", "rename", "sync", "sync_directory"} & dict(watch.threaded).keys()
    assert drain(place.log) == b"".join(place.written[:7])
    assert drain(log_of(opened(place.disk.restart()))) == b"".join(place.written[:7])


def test_a_restart_waits_for_the_disk_in_threads_only(run):
    place = Place()
    watch = LoopWatch(place.disk)
    run(place.restart(100))
    assert watch.slow_calls == []
    assert (place.log.log_start_offset, place.log.log_end_offset) == (100, 100)
    assert place.partition.high_watermark == 100
    fill(place.log, 3)
    flushed(place.directory)
    assert log_of(opened(place.disk.restart())).log_end_offset == 103


def test_readers_find_the_whole_log_or_the_shorter_one(run):
    place = Place()

    async def cut() -> None:
        gate = Gate(place.disk)
        cutting = asyncio.create_task(place.truncate(7))
        await turns()
        assert drain(place.log) == b"".join(place.written)
        assert place.partition.high_watermark == 20
        await gate.let()
        assert drain(place.log) == b"".join(place.written[:7])
        assert place.partition.high_watermark == 7
        await gate.let()
        await cutting

    run(cut())
    assert drain(place.log) == b"".join(place.written[:7])


def test_nothing_is_appended_and_no_round_runs_while_a_log_is_cut(run):
    place = Place()

    async def cut() -> None:
        gate = Gate(place.disk)
        cutting = asyncio.create_task(place.truncate(7))
        await gate.let()
        assert place.log.is_being_cut
        assert place.log_changes.locked()
        with pytest.raises(KafkaError, match="being cut"):
            place.partition.as_follower.append(batch(7), high_watermark=0, now_ms=NOW_MS)
        round_ = asyncio.create_task(place.flusher.run_round(lambda: pytest.fail("it ran")))
        await turns()
        round_.cancel()
        await gate.let()
        await cutting

    run(cut())
    assert place.partition.as_follower.append(batch(7), high_watermark=0, now_ms=NOW_MS) == 1


def test_a_cut_that_is_no_longer_wanted_changes_nothing(run):
    place = Place()

    async def cut() -> None:
        gate = Gate(place.disk)
        cutting = asyncio.create_task(place.truncate(7))
        await turns()
        place.is_wanted = False
        await gate.let()
        await cutting

    run(cut())
    assert place.log.log_end_offset == 20
    assert not place.partition.as_follower.is_being_cut
    run(place.truncate(7))
    assert place.log.log_end_offset == 20


def test_R12_a_cut_waits_until_a_full_disk_has_room(run, monkeypatch, caplog):
    monkeypatch.setattr(log_cutter, "RETRY_S", 0)
    place = Place()

    async def cut() -> None:
        place.disk.set_capacity(0)
        cutting = asyncio.create_task(place.truncate(7))
        await turns()
        assert place.partition.as_follower.is_being_cut
        assert await place.flusher.run_round(lambda: None) is False
        async with place.log_changes:
            assert place.log.front.plan_drop({}, now_ms=0, high_watermark=7, segments_max=9) is None
        place.disk.set_capacity(None)
        await cutting

    run(cut())
    assert len(caplog.messages) == 1
    assert not place.partition.as_follower.is_being_cut
    assert place.directory.failure is None
    fill(place.log, 2)
    flushed(place.directory)
    again = opened(place.disk.restart())
    assert log_of(again).log_end_offset == 9
    assert again.report.suspects == []


def test_a_log_that_is_deleted_while_its_cut_waits_for_room_is_left_alone(run, monkeypatch):
    monkeypatch.setattr(log_cutter, "RETRY_S", 0)
    place = Place()

    async def cut() -> None:
        place.disk.set_capacity(0)
        cutting = asyncio.create_task(place.truncate(7))
        await turns()
        place.directory.delete_log(ORDERS)
        async with place.log_changes:
            place.directory.settle_removals()
        place.disk.set_capacity(None)
        await cutting

    run(cut())
    assert place.directory.failure is None


@pytest.mark.parametrize("steps", range(12))
def test_a_checkpoint_that_is_taken_during_a_cut_promises_nothing(steps):
    for plan in ("plan_truncation", "plan_restart"):
        place = Place()
        cut = getattr(place.log, plan)(7)
        cut.read()
        assert cut.begin()
        place.disk.stop_at_call(place.disk.calls + steps + 1)
        with suppress(SimulatedCrash):
            cut.perform()
        place.disk.on_call = None
        place.directory.write_checkpoint()
        again = opened(place.disk.restart())
        assert again.report.suspects == []
        assert again.report.failed == {}


def test_a_fault_during_a_cut_takes_the_directory_offline(run):
    place = Place()
    place.disk.fail("sync_directory", str(ORDERS))
    with pytest.raises(StorageFault):
        run(place.truncate(7))
    assert place.directory.failure is not None
    assert place.partition.as_follower.is_being_cut


def test_a_fault_before_a_cut_begins_leaves_the_log_as_it_was(run):
    place = Place(value=LARGE)
    place.log.read(0, max_bytes=1 << 20, end_offset=20)
    place.disk.set_capacity(0)
    with pytest.raises(StorageFault):
        run(place.truncate(7))
    assert (place.log.log_end_offset, place.partition.as_follower.is_being_cut) == (20, False)
    assert place.directory.failure is None


def test_a_partition_elected_while_its_log_is_cut_leads_when_the_cut_has_ended(run):
    place = Place()
    roles = []
    replicas = ReplicaManager(
        OWN,
        place.directory,
        Flushes(),
        clock=ManualClock(),
        followed=lambda partition, now: roles.append((partition.is_leader, now.leader)),
    )
    metadata = MetadataImage()

    def elect(leader: int, epoch: int) -> None:
        nonlocal metadata
        draft = ImageDraft(metadata)
        partitions = (image(leader=leader, epoch=epoch),)
        draft.put_topic(
            TopicImage(
                name=ORDERS.topic, topic_id=TOPIC_ID, partitions=partitions, config=TopicConfig()
            )
        )
        delta = draft.finish()
        metadata = delta.after
        finished(replicas.apply(delta))

    elect(SECOND, 1)
    found = replicas.find(*ORDERS)
    assert found is not None
    place.partition = found

    async def cut() -> None:
        gate = Gate(place.disk)
        cutting = asyncio.create_task(place.truncate(7))
        await gate.let()
        elect(OWN, 2)
        assert not found.is_leader
        await gate.let()
        await cutting

    run(cut())
    assert found.is_leader
    assert (found.epoch_start_offset, found.leader_epoch) == (7, 2)
    assert roles == [(False, SECOND), (False, -1), (True, OWN)]


def test_a_clean_mark_is_not_left_while_a_log_is_being_cut():
    place = Place()
    cut = place.log.plan_restart(100)
    cut.read()
    assert cut.begin()
    place.directory.close()
    again = opened(place.disk)
    assert not again.started_clean
    assert again.report.suspects == []
    append(log_of(again), batch(log_of(again).log_end_offset))


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("offset", [0, 7, 20, 100])
def test_I12_a_power_loss_during_a_restart_leaves_a_log_that_has_what_it_says(
    offset, is_checkpointed
):
    """It would be in sync without the records between its start and its first segment."""
    stop, has_ended = 1, False
    while not has_ended:
        place = Place()
        stored(place.directory)
        cut = place.log.plan_restart(offset)
        cut.read()
        assert cut.begin()
        place.disk.stop_at_call(place.disk.calls + stop)
        with suppress(SimulatedCrash):
            cut.perform()
            has_ended = True
        place.disk.on_call = None
        if is_checkpointed:
            place.directory.write_checkpoint()
        for seed in range(3):
            directory = opened(place.disk.crash_image(SeededRng(seed)))
            log = log_of(directory)
            start, end = log.log_start_offset, log.log_end_offset
            assert drain(log) == b"".join(place.written[start:end])
            assert end in (0, offset, 20)
            assert start < end or end <= offset
            assert directory.report.suspects == []
        stop += 1


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_log_whose_cut_waits_for_room_is_not_opened_by_a_second_cut(run, monkeypatch, is_wanted):
    monkeypatch.setattr(log_cutter, "RETRY_S", 0.001)
    place = Place()

    async def cut() -> None:
        place.disk.set_capacity(0)
        cutting = asyncio.create_task(place.truncate(7))
        await turns()
        place.is_wanted = is_wanted
        await place.truncate(7)  # for the next leader
        await place.restart(3)
        with pytest.raises(KafkaError, match="being cut"):
            place.partition.as_follower.append(batch(7), high_watermark=0, now_ms=NOW_MS)
        place.disk.set_capacity(None)
        await cutting

    run(cut())
    assert place.log.log_end_offset == 7
    assert not place.partition.as_follower.is_being_cut


@simulated
async def test_a_log_that_is_cut_before_its_flush_is_flushed_as_far_as_it_goes():
    place = Place()
    fill(place.log, 3)
    place.flusher.request(place.log)
    await place.truncate(7)
    running = asyncio.ensure_future(place.flusher.run())
    await asyncio.sleep(1.0)
    running.cancel()
    assert place.log.flushed_offset == place.log.log_end_offset == 7
