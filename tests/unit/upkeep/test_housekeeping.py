"""The background work of a data directory."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.batches import NOW_MS, append, batch, fill
from tests.support.directories import (
    ORDERS,
    ORDERS_PATH,
    ROOT,
    SMALL,
    TOPIC_ID,
    flushed,
    opened,
    stored,
)
from tests.support.loop_watch import LoopWatch
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import DiskBusy, StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import SEGMENTS_PER_DROP
from tidemill.core.telemetry import Telemetry
from tidemill.replication.flushing.flusher import Flusher
from tidemill.replication.pending_logs import PendingLogs
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.directory.metadata_note import NOTE_NAME, MetadataNote
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.recovery.cut_files import CUT_FILE_MS_MAX
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.housekeeping import Housekeeping

CUT = f"{ORDERS_PATH}/{0:020d}.log.cut-3"
TURNS = 20
DAY_MS = 24 * 3600 * 1000


async def one_retention_pass(
    disk: SimDisk,
    directory: LogDirectory,
    clock: ManualClock,
    *,
    high_watermark: int = 0,
    log_changes: asyncio.Lock | None = None,
) -> None:
    partition = SimpleNamespace(droppable_offset=lambda: high_watermark)
    housekeeping = Housekeeping(
        disk,
        directory,
        SimpleNamespace(pending_logs=PendingLogs(), find=lambda *_: partition),
        clock=clock,
        flusher=Flusher(disk, directory.dirty, clock=clock, telemetry=Telemetry()),
        log_changes=log_changes or asyncio.Lock(),
        config=LiveConfig(BrokerConfig(log_retention_check_interval_ms=0)),
    )
    running = asyncio.create_task(housekeeping.run_retention())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    running.cancel()


def housekeeping_of(
    directory: LogDirectory, disk: SimDisk, note: MetadataNote | None = None
) -> Housekeeping:
    """Where nothing is to be flushed."""

    async def nothing_to_flush(_collect: object) -> bool:
        return False

    return Housekeeping(
        disk,
        directory,
        SimpleNamespace(pending_logs=PendingLogs(), high_watermarks=dict),
        clock=ManualClock(),
        flusher=SimpleNamespace(run_round=nothing_to_flush),
        log_changes=asyncio.Lock(),
        config=LiveConfig(BrokerConfig()),
        note=note,
    )


@pytest.mark.parametrize(
    ("age_ms", "stays"), [(CUT_FILE_MS_MAX, True), (CUT_FILE_MS_MAX + 1, False)]
)
def test_a_retention_pass_deletes_the_side_files_of_old_recoveries(run, age_ms, stays):
    disk = SimDisk()
    directory = opened(disk)
    directory.create_log(ORDERS, TOPIC_ID, SMALL)
    disk.open(CUT, create=True)
    clock = ManualClock(wall_ms=age_ms)

    run(one_retention_pass(disk, directory, clock))
    assert disk.exists(CUT) == stays


def test_the_files_of_a_deleted_log_go_at_once_and_do_not_wait_for_retention(run):
    disk = SimDisk()
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, SMALL), 10)
    before = set(disk.list_names(directory.path))
    pending = PendingLogs()

    async def delete() -> None:
        clock = ManualClock()
        housekeeping = Housekeeping(
            disk,
            directory,
            SimpleNamespace(pending_logs=pending),
            clock=clock,
            flusher=Flusher(disk, directory.dirty, clock=clock, telemetry=Telemetry()),
            log_changes=asyncio.Lock(),
            config=LiveConfig(BrokerConfig()),
        )
        loops = [housekeeping.run_openings(), housekeeping.run_purges()]
        running = [asyncio.create_task(loop) for loop in loops]
        directory.delete_log(ORDERS)
        pending.wake()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for task in running:
            task.cancel()

    run(delete())
    assert before - set(disk.list_names(directory.path)) == {str(ORDERS)}
    assert not [name for name in disk.list_names(directory.path) if name.endswith(".deleted")]


@pytest.mark.parametrize(("idle_ms", "left"), [(DAY_MS - 1, 1), (DAY_MS, 0)])
def test_a_retention_pass_forgets_silent_producers(run, idle_ms, left):
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    append(log, batch(0, producer=(5, 0, 0)), now_ms=1_000)
    run(one_retention_pass(disk, directory, ManualClock(wall_ms=1_000 + idle_ms)))
    assert len(log.producers) == left


def test_retention_waits_for_the_disk_in_threads_only(run):
    disk = SimDisk()
    directory = opened(disk)
    names = [TopicPartition("t", number) for number in range(3)]
    config = replace(SMALL, retention_ms=1_000, segment_bytes=150)
    for name in names:
        log = directory.create_log(name, TOPIC_ID, config)
        fill(log, 2 * SEGMENTS_PER_DROP)
        flushed(directory, name)
    stored(directory)
    directory.delete_log(names[2])
    directory.settle_removals()
    directory.close()
    disk = disk.restart()
    directory = opened(disk)
    for log in directory.logs().values():
        log.set_config(config)
    watch = LoopWatch(disk)
    run(one_retention_pass(disk, directory, ManualClock(wall_ms=NOW_MS + 2_000), high_watermark=99))
    assert watch.slow_calls == []
    assert all(log.log_start_offset > SEGMENTS_PER_DROP for log in directory.logs().values())
    assert "rename" in dict(watch.threaded)
    assert not [name for name in disk.list_names(directory.path) if name.endswith(".deleted")]


def test_a_slice_of_retention_changes_no_more_files_than_its_bound(run):
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, replace(SMALL, retention_bytes=0))
    fill(log, 3 * SEGMENTS_PER_DROP)
    stored(directory)
    renames = []
    run_in_thread = disk.run

    async def counted(operation, work=DiskWork.READ):
        calls = []
        disk.on_call = lambda _disk, call, _path: calls.append(call)
        outcome = await run_in_thread(operation, work)
        renames.append(calls.count("rename"))
        return outcome

    disk.run = counted
    clock = ManualClock(wall_ms=NOW_MS)
    run(one_retention_pass(disk, directory, clock, high_watermark=3 * SEGMENTS_PER_DROP))
    assert max(renames) <= SEGMENTS_PER_DROP
    assert len(log.segments) <= 2


def test_a_log_whose_retention_keeps_failing_has_one_log_line_a_minute(run, caplog):
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, replace(SMALL, retention_bytes=0))
    fill(log, 10)
    stored(directory)
    tried = []
    disk.on_call = lambda _disk, call, _path: tried.append(call)
    disk.fail("rename", ORDERS_PATH, times=1_000)
    with caplog.at_level(logging.ERROR):
        run(one_retention_pass(disk, directory, ManualClock(), high_watermark=10))
    assert tried.count("rename") > 1
    (line,) = caplog.messages
    assert f"retention of {ORDERS} failed" in line


def test_retention_waits_while_something_else_changes_the_files_of_logs(run):
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, replace(SMALL, retention_bytes=0))
    fill(log, 10)
    stored(directory)

    async def beside_another_change() -> int:
        log_changes = asyncio.Lock()
        async with log_changes:
            await one_retention_pass(
                disk, directory, ManualClock(), high_watermark=10, log_changes=log_changes
            )
            return log.log_start_offset

    assert run(beside_another_change()) == 0
    run(one_retention_pass(disk, directory, ManualClock(), high_watermark=10))
    assert log.log_start_offset == 10


def test_a_flood_of_reads_does_not_keep_a_broker_from_stopping_cleanly(run):
    disk = SimDisk()
    directory = opened(disk)
    refusals = [DiskBusy("too many reads wait for the disk")] * 2
    run_in_thread = disk.run

    async def busy_at_first(operation, work=DiskWork.READ):
        if refusals:
            raise refusals.pop()
        return await run_in_thread(operation, work)

    disk.run = busy_at_first
    run(housekeeping_of(directory, disk).close())
    assert opened(disk).started_clean


def test_a_note_that_cannot_be_written_keeps_no_broker_from_stopping_cleanly(run):
    disk = SimDisk()
    directory = opened(disk)
    fill(directory.create_log(ORDERS, TOPIC_ID, SMALL), 3)
    disk.fail("pwrite", NOTE_NAME)
    note = MetadataNote(disk, ROOT, lambda: (1, 1))
    run(housekeeping_of(directory, disk, note).close())
    assert not disk.exists(f"{ROOT}/{NOTE_NAME}")
    again = opened(disk)
    assert again.started_clean
    assert again.logs()[ORDERS].log_end_offset == 3


def test_a_disk_that_fails_while_checkpoints_wait_ends_none_of_those_who_want_them(run):
    async def scenario() -> None:
        disk = SimDisk()
        directory = opened(disk)
        housekeeping = housekeeping_of(directory, disk)
        await housekeeping._one_at_a_time.acquire()
        periodic = asyncio.create_task(housekeeping.checkpoint())
        wanted = asyncio.create_task(housekeeping.write_checkpoint())
        await asyncio.sleep(0)
        directory.fail(StorageFault("sync: input/output error"))
        housekeeping._one_at_a_time.release()
        await periodic
        with pytest.raises(StorageFault, match="is offline: sync"):
            await wanted

    run(scenario())
