"""The settler makes the journal, syncs what is only in it, and lets its files be filled again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.support.journaled_directory import JournaledDirectory
from tests.support.memory_peer import simulated
from tidemill.core.errors import StorageFault
from tidemill.core.limits import JOURNAL_TAIL_BYTES_MAX
from tidemill.core.telemetry import Telemetry
from tidemill.replication.flushing.flusher import Flusher
from tidemill.replication.flushing.journal_settler import JournalSettler
from tidemill.replication.pulling.log_cutter import LogCutter
from tidemill.storage.log.interface import LogCut
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.manual_clock import SimClock
from tidemill.testing.sim.disk import SimDisk

LOGS = 20


class CutPartition:
    """The part of a partition that a cut uses."""

    name = "t-0"
    is_being_cut = False

    def begin_cut(self, cut: LogCut) -> bool:
        return cut.begin()

    def cut_ended(self) -> None:
        self.is_being_cut = False


def slow_down(disk: SimDisk) -> None:
    """Blocks of the journal take a while."""
    write = disk.write_gathered

    async def write_slowly(*arguments: Any) -> None:
        await asyncio.sleep(0.05)
        await write(*arguments)

    disk.write_gathered = write_slowly  # type: ignore[method-assign]


class Settled:
    """Logs whose rounds go to the journal, with their flusher and settler."""

    def __init__(self) -> None:
        self.place = JournaledDirectory(SimDisk())
        self.logs = self.place.create(LOGS)
        self.journal = self.place.journal
        clock = SimClock(asyncio.get_running_loop().time)
        self.telemetry = Telemetry()
        self.flusher = Flusher(
            self.place.disk, self.place.directory.dirty, clock=clock, telemetry=self.telemetry
        )
        self._flushed = asyncio.Event()
        self.flusher.subscribe(lambda _log: self._flushed.set())
        self.settler = JournalSettler(
            self.place.disk,
            self.place.directory,
            self.flusher,
            clock=clock,
            telemetry=self.telemetry,
        )
        self._tasks = [
            asyncio.ensure_future(self.flusher.run()),
            asyncio.ensure_future(self.settler.run()),
        ]

    async def flush(self, size: int = 50) -> None:
        for log in self.logs:
            self.place.append(log, size)
            self.flusher.appended(log, size, ack_waits=True)
        while any(log.flushed_offset < log.log_end_offset for log in self.logs):
            self._flushed.clear()
            await self._flushed.wait()

    async def flush_in_journal(self) -> FilePartitionLog:
        """The first log, with bytes in the journal only."""
        while not self.logs[0].progress.is_in_journal:
            await self.flush()
            await asyncio.sleep(0)
        return self.logs[0]

    async def cut(self, plan: Callable[[], LogCut | None]) -> None:
        cutter = LogCutter(
            self.place.disk,
            self.flusher,
            settler=self.settler,
            log_changes=asyncio.Lock(),
            fail=self.place.directory.fail,
        )
        await cutter.cut(CutPartition(), plan, is_wanted=lambda: True)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@simulated
async def test_the_journal_is_made_when_a_round_has_use_for_it():
    settled = Settled()
    log = await settled.flush_in_journal()
    assert log.progress.synced_offset < log.flushed_offset == log.log_end_offset
    await settled.stop()


@simulated
async def test_bytes_stay_in_the_journal_alone_for_a_limited_time():
    settled = Settled()
    log = await settled.flush_in_journal()
    await asyncio.sleep(60.0)
    assert log.progress.synced_offset == log.log_end_offset
    assert not log.progress.is_in_journal
    await settled.stop()


@simulated
async def test_acknowledgements_go_on_while_files_fill_and_are_settled():
    settled = Settled()
    for _ in range(300):
        await settled.flush(size=100)
    assert settled.telemetry.journal_rounds > 100
    assert settled.telemetry.journal_laps > 10
    assert [log.flushed_offset for log in settled.logs] == [
        log.log_end_offset for log in settled.logs
    ]
    await settled.stop()


@simulated
async def test_a_round_syncs_long_tails_beside_its_block():
    settled = Settled()
    await settled.flush_in_journal()
    rounds = settled.telemetry.journal_rounds
    long = settled.logs[0]
    settled.place.append(long, JOURNAL_TAIL_BYTES_MAX)
    settled.flusher.appended(long, JOURNAL_TAIL_BYTES_MAX, ack_waits=True)
    await settled.flush()
    assert settled.telemetry.journal_rounds == rounds + 1
    assert long.progress.synced_offset == long.log_end_offset
    assert settled.logs[1].progress.synced_offset < settled.logs[1].flushed_offset
    await settled.stop()


@simulated
async def test_a_log_that_must_be_cut_is_out_of_the_journal_first():
    settled = Settled()
    log = await settled.flush_in_journal()
    await settled.settler.settle(lambda: log.progress.is_in_journal)
    log.truncate_to(1)
    assert log.log_end_offset == 1
    await settled.stop()


@simulated
async def test_I1_a_segment_that_cannot_be_synced_keeps_its_bytes_in_the_journal():
    settled = Settled()
    await settled.flush_in_journal()
    ends = [log.flushed_offset for log in settled.logs]
    settled.place.disk.fail("sync", "t-3/")
    await asyncio.sleep(60.0)
    assert settled.place.directory.failure is not None
    await settled.stop()
    after = settled.place.crash()
    assert [log.log_end_offset for log in after.directory.logs().values()] == ends


@simulated
async def test_R12_the_journal_leaves_a_nearly_full_disk_to_the_logs():
    settled = Settled()
    disk = settled.place.disk
    used = disk.space("/data").total_bytes - disk.space("/data").usable_bytes
    disk.set_capacity(used + 30_000)
    for _ in range(3):
        await settled.flush(size=1)
        await asyncio.sleep(2.0)
    assert settled.place.directory.failure is None
    assert not disk.exists("/data/round-journal.0")
    await settled.stop()


@simulated
async def test_a_broker_that_ends_while_a_file_is_settled_leaves_it_for_the_next_start():
    settled = Settled()
    log = await settled.flush_in_journal()
    await settled.flusher.finish()
    await settled.settler._settle()
    assert log.progress.is_in_journal
    await settled.stop()
    settled.place.directory.close()
    again = JournaledDirectory(settled.place.disk.restart())
    assert again.directory.started_clean


@simulated
async def test_a_log_that_is_put_into_the_journal_while_its_cut_waits_is_settled_again():
    settled = Settled()
    log = await settled.flush_in_journal()
    await settled.settler.settle(lambda: log.progress.is_in_journal)
    slow_down(settled.place.disk)
    for one in settled.logs:
        settled.place.append(one)
        settled.flusher.appended(one, 50, ack_waits=True)
    await asyncio.sleep(0.01)  # the block of the next round is being written
    await settled.cut(lambda: log.plan_truncation(1))
    assert log.log_end_offset == 1
    await settled.stop()


@simulated
async def test_a_cut_that_cannot_be_settled_takes_the_directory_offline_and_nothing_else():
    settled = Settled()
    log = await settled.flush_in_journal()
    end = log.log_end_offset
    settled.place.disk.fail("sync", "t-3/")
    with pytest.raises(StorageFault):
        await settled.cut(lambda: log.plan_truncation(1))
    assert settled.place.directory.failure is not None
    assert log.log_end_offset == end
    await settled.stop()


@simulated
async def test_settling_ends_when_the_broker_runs_no_more_rounds():
    settled = Settled()
    log = await settled.flush_in_journal()
    await settled.flusher.finish()
    with pytest.raises(StorageFault):
        await settled.settler.settle(lambda: log.progress.is_in_journal)
    await settled.stop()


@simulated
async def test_a_disk_that_cannot_make_the_journal_goes_on_without_it():
    settled = Settled()
    settled.place.disk.fail("create", "round-journal", times=1_000)
    for _ in range(3):
        await settled.flush()
        await asyncio.sleep(2.0)
    assert settled.place.directory.failure is None
    await settled.stop()
