"""A snapshot spares a replay, and is used only if it is of the log that there is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.batches import append, batch, flush
from tests.support.coroutines import run
from tests.support.hold_stage import Replica, cancel, delay
from tidemill.replication.holding import (
    hold_replay,
    hold_snapshots,
    partition_holds,
    releaser,
)
from tidemill.replication.holding.hold_spills import HoldSpills
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig, LogSlice
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire import compression


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(HoldSpills, table_max=4, runs_max=2)
    monkeypatch.setattr(partition_holds, "HoldSpills", small)


@pytest.fixture
def disk() -> Iterator[OsDisk]:
    made = OsDisk()
    yield made
    made.close()


def _log(disk: OsDisk, directory: Path) -> FilePartitionLog:
    return FilePartitionLog.create(disk, FileCache(disk), str(directory), LogConfig())


async def _fill(replica: Replica, count: int) -> None:
    """Holds, each flushed: a snapshot waits for that."""
    for number in range(count):
        replica.send((b"%d" % number, [delay(60_000 + number)]))
        flush(replica.partition.log)
        await replica.work()


def _snapshots(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.holds"))


async def _again(before: Replica, log: FilePartitionLog, disk: OsDisk) -> Replica:
    """The next process on the same files."""
    again = Replica(before.clock, log, disk=disk).lead(epoch=1)
    await again.work()
    return again


def test_a_replay_begins_behind_the_newest_snapshot(disk, tmp_path, monkeypatch):
    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        (*_, newest) = _snapshots(tmp_path / "t-0")
        leading.send((b"", cancel(b"2")))
        reads = _noted_reads(monkeypatch)
        again = await _again(leading, log, disk)
        assert min(reads) == newest - 1, "the batch before the snapshot is looked at, no other"
        assert list(again.holds.book.held()) == list(leading.holds.book.held())
        assert again.holds.book.pending == 29

    run(scenario())


def test_a_start_does_not_read_a_long_log_for_a_few_holds(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(hold_snapshots, "HOLD_SNAPSHOT_LOG_BYTES", 1_000)

    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        leading.send((b"a", [delay(60_000)]))
        for _ in range(9):
            leading.send((b"x" * 200, []))
        flush(log)
        for _ in range(2):
            leading.host.keep_all()
            await leading.work()
        assert _snapshots(tmp_path / "t-0") == [10]
        leading.send((b"b", [delay(60_000)]))
        reads = _noted_reads(monkeypatch)
        again = await _again(leading, log, disk)
        assert min(reads) == 9
        assert again.holds.book.pending == 2
        await again.pass_time(61)
        assert [one.value for one in again.seen(10)] == [b"a", b"b"]

    run(scenario())


def _noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From where the log is read, from now on."""
    reads: list[int] = []
    read = FilePartitionLog.read

    def noted(self, offset, **options):
        reads.append(offset)
        return read(self, offset, **options)

    monkeypatch.setattr(FilePartitionLog, "read", noted)
    return reads


def test_everything_comes_once_from_a_book_that_was_restored(disk, tmp_path):
    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        again = await _again(leading, log, disk)
        end = log.log_end_offset
        await again.pass_time(61)
        assert again.holds.book.pending == 0
        assert log.log_end_offset - end == 30
        await again.pass_time(61)
        assert log.log_end_offset - end == 30

    run(scenario())


def test_a_snapshot_of_batches_that_were_cut_is_not_used_even_if_others_took_their_place(
    disk, tmp_path
):
    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        assert _snapshots(tmp_path / "t-0")
        log.truncate_to(3)
        append(log, *[batch(offset, epoch=1) for offset in range(3, 40)])
        again = await _again(leading, log, disk)
        assert [hold.ticket for hold in again.holds.book.held()] == [0, 1, 2]
        assert _snapshots(tmp_path / "t-0") == []

    run(scenario())


def test_a_snapshot_is_not_used_if_the_log_lets_go_what_came_after_it_while_it_is_read(
    disk, tmp_path, monkeypatch
):
    """What ended in between would be held for ever, and all releases behind it with it."""

    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        await leading.pass_time(61)
        try_open = hold_snapshots._try_open

        def let_go(*arguments):
            book = try_open(*arguments)
            log.advance_start(log.log_end_offset)
            return book

        monkeypatch.setattr(hold_snapshots, "_try_open", let_go)
        again = await _again(leading, log, disk)
        assert again.holds.is_whole
        assert again.holds.book.pending == 0

    run(scenario())


@pytest.mark.parametrize("pattern", ["*.holds", "*.holdrun"])
def test_damaged_files_cost_a_longer_replay_and_nothing_else(disk, tmp_path, pattern):
    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        for path in (tmp_path / "t-0").glob(pattern):
            path.write_bytes(path.read_bytes()[:-1])
        again = await _again(leading, log, disk)
        assert [hold.ticket for hold in again.holds.book.held()] == list(range(30))

    run(scenario())


def test_S11_a_replay_keeps_nothing_of_ends_that_are_durable(disk, tmp_path):
    """A long log has millions of them, and each would be a pin until the replay is over."""

    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 3)
        for number in range(3):
            await leading.pass_time(60 + number)
            flush(log)
        again = await _again(leading, log, disk)
        assert again.holds.is_whole
        assert again.holds.book.capture().pins == []

    run(scenario())


def test_a_snapshot_with_holds_whose_records_are_gone_is_given_up(disk, tmp_path):
    """As after an unclean election: the release was cut, and the record deleted before."""

    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        assert _snapshots(tmp_path / "t-0")
        log.advance_start(5)
        again = await _again(leading, log, disk)
        assert again.holds.book.pending == 30
        await again.pass_time(120)
        await again.work()
        values = [one.value for one in again.seen(30)]
        assert values == [b"%d" % number for number in range(5, 30)]
        assert again.holds.book.pending == 0

    run(scenario())


def test_a_snapshot_whose_batch_is_cut_while_it_is_read_is_given_up(disk, tmp_path, monkeypatch):
    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        read = FilePartitionLog.read
        left = [LogSlice((), 1, tuple), LogSlice((), 1, tuple)]  # one for each snapshot

        def cut(self, offset, **options):
            return left.pop() if left else read(self, offset, **options)

        monkeypatch.setattr(FilePartitionLog, "read", cut)
        again = await _again(leading, log, disk)
        assert not left
        assert again.holds.is_whole
        assert again.holds.book.pending == 30

    run(scenario())


def test_a_foreign_file_whose_number_is_no_number_of_ours_is_left_alone(disk, tmp_path):
    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        foreign = tmp_path / "t-0" / f"{'9' * 20}.holdrun"
        foreign.write_bytes(b"not a run")
        again = await _again(leading, log, disk)
        before = _snapshots(tmp_path / "t-0")
        await _fill(again, 30)
        assert _snapshots(tmp_path / "t-0") > before
        assert again.holds.book.pending == 60
        assert foreign.exists()

    run(scenario())


def test_S11_a_log_that_starts_over_while_its_snapshot_is_read_has_a_book_in_files_again(
    disk, tmp_path
):
    """As a follower whose leader no longer has what follows its log."""

    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        await _fill(leading, 30)
        again = Replica(leading.clock, log, disk=disk).lead(epoch=1)

        def start_over():
            log.restart_at(1_000)
            again.holds.was_cut()

        again.disk.before = start_over
        await again.work()
        assert again.holds.is_whole
        await _fill(again, 9)
        assert again.holds.book.runs()

    run(scenario())


def test_S11_a_replay_of_batches_that_open_to_megabytes_gives_others_a_turn(
    disk, tmp_path, monkeypatch
):
    opened: list[int] = []
    most: list[int] = []
    original = hold_replay.open_records

    def open_records(batch, header):
        section = original(batch, header)
        opened.append(len(section))
        return section

    async def watch():
        while True:
            most.append(sum(opened))
            opened.clear()
            await asyncio.sleep(0)

    async def scenario():
        log = _log(disk, tmp_path / "t-0")
        leading = Replica(ManualClock(), log, disk=disk).lead()
        for _ in range(40):
            held = (bytes(1 << 20), [delay(60_000)])
            leading.send(held, codec=compression.ZSTD)
        monkeypatch.setattr(hold_replay, "open_records", open_records)
        watching = asyncio.create_task(watch())
        again = await _again(leading, log, disk)
        watching.cancel()
        assert again.holds.book.pending == 40
        assert sum(most) >= 40 << 20
        assert max(most) <= 10 << 20

    run(scenario())


def test_S11_tables_are_written_while_the_replay_of_another_partition_takes_long(
    disk, tmp_path, monkeypatch
):
    async def long_replay(_holds, _disk):
        await asyncio.Event().wait()

    async def scenario():
        leading = Replica(ManualClock(), _log(disk, tmp_path / "t-0"), disk=disk).lead()
        monkeypatch.setattr(releaser, "replay", long_replay)
        loops = [leading.releaser.run_replays(), leading.releaser.run_writes()]
        tasks = [asyncio.create_task(one) for one in loops]
        other = Replica(leading.clock, _log(disk, tmp_path / "t-1"), disk=disk).lead()
        other.send((b"other", [delay(60_000)]))
        other.holds.is_whole = False
        leading.host.replay(other.holds)
        await asyncio.sleep(0)
        for number in range(9):
            leading.send((b"%d" % number, [delay(60_000)]))
            await asyncio.sleep(0)
        assert leading.holds.book.runs()
        for task in tasks:
            task.cancel()

    run(scenario())
