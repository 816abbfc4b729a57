"""The threads of the real disk: none of one kind of work waits behind another kind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.support.blocked_threads import BlockedThreads
from tidemill.core.errors import DiskBusy, InvariantViolation, StorageFault
from tidemill.core.limits import (
    DISK_BACKGROUND_THREADS,
    DISK_BACKGROUND_WAITING_MAX,
    DISK_FLUSH_THREADS,
    DISK_READ_THREADS,
    DISK_READS_WAITING_MAX,
)
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.files.disk_work import DiskLoad, DiskWork

THREADS = {
    DiskWork.FLUSH: DISK_FLUSH_THREADS,
    DiskWork.READ: DISK_READ_THREADS,
    DiskWork.BACKGROUND: DISK_BACKGROUND_THREADS,
}


@pytest.fixture
def disk() -> Iterator[OsDisk]:
    made = OsDisk()
    yield made
    made.close()


@pytest.mark.parametrize("free", list(DiskWork))
def test_work_of_one_kind_runs_while_every_thread_of_the_others_is_blocked(run, disk, free):
    async def scenario():
        blocked = [BlockedThreads(disk, work) for work in DiskWork if work is not free]
        for one, work in zip(blocked, (w for w in DiskWork if w is not free), strict=True):
            await one.block(THREADS[work])
        name = await disk.run(lambda: threading.current_thread().name, free)
        for one in blocked:
            await one.release()
        return name

    assert run(scenario()).startswith(f"disk-{free.value}")


def test_what_waits_for_a_thread_is_counted_and_runs_in_its_turn(run, disk):
    async def scenario():
        blocked = BlockedThreads(disk, DiskWork.READ)
        await blocked.block(DISK_READ_THREADS)
        seen = []
        waiting = [asyncio.create_task(disk.run(lambda n=n: seen.append(n))) for n in range(1)]
        await asyncio.sleep(0)
        busy = disk.load_of(DiskWork.READ)
        await blocked.release()
        await asyncio.gather(*waiting)
        return busy, seen, disk.load_of(DiskWork.READ)

    busy, seen, idle = run(scenario())
    assert busy == DiskLoad(running=DISK_READ_THREADS, waiting=1, waited=1)
    assert seen == [0]
    assert idle == DiskLoad(waited=1)


def test_a_read_beyond_the_bound_of_the_queue_is_refused_and_never_runs(run, disk):
    async def scenario():
        blocked = BlockedThreads(disk, DiskWork.READ)
        await blocked.block(DISK_READ_THREADS)
        waiting = [
            asyncio.create_task(disk.run(lambda: None)) for _ in range(DISK_READS_WAITING_MAX)
        ]
        await asyncio.sleep(0)
        ran = []
        with pytest.raises(DiskBusy):
            await disk.run(lambda: ran.append("the refused read"))
        full = disk.load_of(DiskWork.READ)
        await blocked.release()
        await asyncio.gather(*waiting)
        await disk.run(lambda: ran.append("the next one"))
        return full, ran

    full, ran = run(scenario())
    assert (full.waiting, full.refused) == (DISK_READS_WAITING_MAX, 1)
    assert ran == ["the next one"]


@pytest.mark.parametrize(
    ("work", "waiting_max"),
    [(DiskWork.FLUSH, 0), (DiskWork.BACKGROUND, DISK_BACKGROUND_WAITING_MAX)],
)
def test_more_work_of_a_kind_than_its_callers_can_have_is_a_bug(run, disk, work, waiting_max):
    async def scenario():
        blocked = BlockedThreads(disk, work)
        await blocked.block(THREADS[work])
        waiting = [asyncio.create_task(disk.run(lambda: None, work)) for _ in range(waiting_max)]
        await asyncio.sleep(0)
        with pytest.raises(InvariantViolation, match=work.value):
            await disk.run(lambda: None, work)
        await blocked.release()
        await asyncio.gather(*waiting)

    run(scenario())


def test_an_operation_whose_caller_was_cancelled_is_skipped(run, disk):
    async def scenario():
        blocked = BlockedThreads(disk, DiskWork.BACKGROUND)
        await blocked.block(DISK_BACKGROUND_THREADS)
        ran = []
        task = asyncio.create_task(disk.run(lambda: ran.append("it"), DiskWork.BACKGROUND))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        still_queued = disk.load_of(DiskWork.BACKGROUND).waiting
        await blocked.release()
        await disk.run(lambda: None, DiskWork.BACKGROUND)
        return ran, still_queued, task.cancelled()

    assert run(scenario()) == ([], 1, True)
    assert disk.load_of(DiskWork.BACKGROUND).running == 0


def test_a_failed_operation_leaves_no_trace_in_the_load(run, disk, tmp_path):
    async def scenario():
        with pytest.raises(StorageFault):
            await disk.run(lambda: disk.size(f"{tmp_path}/missing"))
        return disk.load_of(DiskWork.READ)

    assert run(scenario()) == DiskLoad()
