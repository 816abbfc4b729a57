"""Jobs of the real disk: bounds, cancelled callers, and closing while they run."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from tests.support.blocked_threads import DEADLINE_S
from tests.support.flavours import FLAVOURS, load
from tidemill.core.errors import DiskFull, InvariantViolation, StorageFault
from tidemill.core.limits import DISK_FLUSH_THREADS
from tidemill.storage.files import disk_jobs
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.files.disk_work import DiskLoad, DiskWork


@pytest.fixture(params=FLAVOURS)
def disk(request, monkeypatch) -> Iterator[OsDisk]:
    monkeypatch.setattr(disk_jobs, "DiskWorker", load(request.param, "disk_worker").DiskWorker)
    made = OsDisk()
    yield made
    made.close()


@pytest.fixture
def plain_disk(monkeypatch) -> Iterator[OsDisk]:
    """Its threads are Python's: a test can stop them in a sync."""
    monkeypatch.setattr(disk_jobs, "DiskWorker", load("pure", "disk_worker").DiskWorker)
    made = OsDisk()
    yield made
    made.close()


@pytest.fixture
def stuck(monkeypatch) -> Iterator[threading.Event]:
    """Syncs wait for this event."""
    may_go = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: may_go.wait(DEADLINE_S))
    yield may_go
    may_go.set()


def new_file(disk, path, data=b"12345"):
    file = disk.open(str(path), create=True)
    file.pwrite([data], 0)
    return file


def test_a_sync_that_nobody_waits_for_does_not_delay_a_flush(
    run, plain_disk, tmp_path, monkeypatch
):
    slow, quick = new_file(plain_disk, tmp_path / "slow"), new_file(plain_disk, tmp_path / "quick")
    may_go = threading.Event()

    def sync(descriptor: int) -> None:
        if descriptor == slow.descriptor:
            assert may_go.wait(DEADLINE_S)

    monkeypatch.setattr(os, "fdatasync", sync)

    async def scenario():
        lazy = asyncio.ensure_future(plain_disk.sync_files([slow], DiskWork.BACKGROUND))
        await asyncio.sleep(0)
        flushed = await plain_disk.sync_files([quick])
        load = plain_disk.load_of(DiskWork.BACKGROUND)
        may_go.set()
        return flushed, load.running + load.waiting, await lazy

    assert run(scenario()) == ([None], 1, [None])


def test_jobs_wait_their_turn_and_are_counted(run, plain_disk, tmp_path, stuck):
    file = new_file(plain_disk, tmp_path / "f")

    async def scenario():
        jobs = [
            asyncio.ensure_future(plain_disk.sync_files([file], DiskWork.BACKGROUND))
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        busy = plain_disk.load_of(DiskWork.BACKGROUND)
        stuck.set()
        await asyncio.gather(*jobs)
        return busy, plain_disk.load_of(DiskWork.BACKGROUND)

    busy, idle = run(scenario())
    assert (busy.running + busy.waiting, busy.waited) == (3, 2)
    assert idle == DiskLoad(waited=2)


def test_more_jobs_than_callers_can_have_are_a_bug(run, plain_disk, tmp_path, stuck):
    file = new_file(plain_disk, tmp_path / "f")

    async def scenario():
        jobs = [
            asyncio.ensure_future(plain_disk.sync_files([file])) for _ in range(DISK_FLUSH_THREADS)
        ]
        await asyncio.sleep(0)
        with pytest.raises(InvariantViolation, match="flush"):
            await plain_disk.sync_files([file])
        stuck.set()
        await asyncio.gather(*jobs)
        return await plain_disk.sync_files([file])

    assert run(scenario()) == [None]


def test_there_are_no_jobs_of_reading(run, disk, tmp_path):
    file = new_file(disk, tmp_path / "f")
    with pytest.raises(InvariantViolation, match="read"):
        run(disk.sync_files([file], DiskWork.READ))


def test_a_cancelled_job_keeps_its_files_open_until_its_end(run, plain_disk, tmp_path, stuck):
    file = new_file(plain_disk, tmp_path / "f")
    descriptor = file.descriptor

    async def scenario():
        nonlocal file
        job = asyncio.ensure_future(plain_disk.sync_files([file]))
        await asyncio.sleep(0)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        del job, file
        still_open = os.readlink(f"/proc/self/fd/{descriptor}")
        stuck.set()
        return still_open

    assert run(scenario()) == str(tmp_path / "f")


def test_close_waits_for_jobs_and_their_callers_get_the_outcome(run, disk, tmp_path):
    source, target = new_file(disk, tmp_path / "s", bytes(1 << 16)), new_file(disk, tmp_path / "t")
    ranges = [(source, 0, 1 << 16)] * 16

    async def scenario():
        jobs = [
            asyncio.ensure_future(disk.write_gathered(target, at << 21, b"", ranges))
            for at in range(DISK_FLUSH_THREADS)
        ]
        jobs.append(asyncio.ensure_future(disk.sync_files([source, target], DiskWork.BACKGROUND)))
        await asyncio.sleep(0)
        disk.close()
        return await asyncio.gather(*jobs)

    assert run(scenario()) == [None] * DISK_FLUSH_THREADS + [[None, None]]
    assert disk.load_of(DiskWork.FLUSH) == DiskLoad()
    assert run(disk.sync_files([target])) == [None]


def test_a_loop_that_ends_before_its_jobs_leaves_the_disk_usable(run, disk, tmp_path):
    source, target = new_file(disk, tmp_path / "s", bytes(1 << 16)), new_file(disk, tmp_path / "t")

    async def leave():
        ranges = [(source, 0, 1 << 16)] * 16
        left = asyncio.ensure_future(disk.write_gathered(target, 0, b"", ranges))
        await asyncio.sleep(0)
        assert not left.done()

    for _ in range(DISK_FLUSH_THREADS - 1):
        run(leave())
        assert run(disk.sync_files([target])) == [None]


def test_a_job_that_could_not_be_submitted_does_not_count(run, disk, tmp_path):
    file = new_file(disk, tmp_path / "f")

    async def scenario():
        for _ in range(DISK_FLUSH_THREADS + 1):
            with pytest.raises(TypeError):
                await disk.write_gathered(file, "here", b"", [])
        return await disk.sync_files([file])

    assert run(scenario()) == [None]


@pytest.mark.filterwarnings("ignore:This process")  # of threads: that is what is tried
def test_a_forked_process_has_threads_of_its_own(run, disk, tmp_path):
    file = new_file(disk, tmp_path / "f")
    assert run(disk.sync_files([file])) == [None]
    child = os.fork()
    if child == 0:
        synced = run(disk.sync_files([file])) == [None]
        disk.close()
        os._exit(7 if synced else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert run(disk.sync_files([file])) == [None]


def test_R12_a_full_disk_is_distinguished_from_a_broken_one(run, disk):
    full = disk.open("/dev/full")
    with pytest.raises(DiskFull):
        run(disk.write_gathered(full, 0, b"head", []))


@pytest.mark.parametrize("turns", [15, pytest.param(100, marks=pytest.mark.slow)])
def test_many_jobs_with_cancelled_callers_and_closed_files_leave_no_trace(
    run, disk, tmp_path, turns
):
    files = [new_file(disk, tmp_path / str(number), bytes(5_000)) for number in range(6)]
    files[5].close()

    async def write(number):
        target, source = files[number % 3], files[3 + number % 3]
        try:
            await disk.write_gathered(
                target, number * 100, b"head", [(source, number, 10)] * 20, DiskWork.BACKGROUND
            )
        except StorageFault:
            return number % 3 == 2
        return number % 3 != 2

    async def sync():
        outcomes = await disk.sync_files(files)
        return [outcome is None for outcome in outcomes] == [True] * 5 + [False]

    async def scenario():
        told = []
        for turn in range(turns):
            jobs = [asyncio.ensure_future(write(turn + number)) for number in range(12)]
            jobs.append(asyncio.ensure_future(sync()))
            await asyncio.sleep(0)
            for job in jobs[turn % 4 :: 4]:
                job.cancel()
            told += await asyncio.gather(*jobs, return_exceptions=True)
        await disk.sync_files(files[:1])
        await disk.sync_files(files[:1], DiskWork.BACKGROUND)
        return told

    told = run(scenario())
    cancelled = [one for one in told if isinstance(one, asyncio.CancelledError)]
    assert len(told) == 13 * turns
    assert len(cancelled) > 3 * turns
    assert all(one is True for one in told if not isinstance(one, asyncio.CancelledError))
    for work in DiskWork:
        load = disk.load_of(work)
        assert (load.running, load.waiting, load.refused) == (0, 0, 0)
