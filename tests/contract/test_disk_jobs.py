"""The contract of Disk's syncs and gathered writes, which run in threads without Python.

The real disk passes it with the compiled worker and with the plain one, on both event loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.support.coroutines import run
from tests.support.flavours import load
from tidemill.core.errors import InvariantViolation, StorageFault
from tidemill.core.limits import GATHERED_BYTES_MAX, GATHERED_RANGES_MAX
from tidemill.core.loop.event_loop import new_event_loop
from tidemill.storage.files import disk_jobs
from tidemill.storage.files.disk import Disk, OsDisk
from tidemill.storage.files.disk_work import DiskLoad, DiskWork
from tidemill.storage.files.gathered_write import write_gathered_now
from tidemill.testing.sim.disk import SimDisk

DEADLINE_S = 30.0
WORKS = [DiskWork.FLUSH, DiskWork.BACKGROUND]


@pytest.fixture(params=["compiled", "pure", "sim"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    if request.param == "sim":
        yield SimDisk()
        return
    monkeypatch.setattr(disk_jobs, "DiskWorker", load(request.param, "disk_worker").DiskWorker)
    made = OsDisk()
    yield made
    made.close()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = str(tmp_path / "disk")
    disk.make_directories(path)
    return path


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
def run_on(request: pytest.FixtureRequest) -> Callable:
    return lambda work: run(work, request.param)


def new_file(disk, path, data=b""):
    file = disk.open(path, create=True)
    file.pwrite([data], 0)
    return file


def gathered(head, *parts):
    rest = head + b"".join(parts)
    return crc32(rest).to_bytes(4, "big") + rest


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_each_file_that_is_synced_has_an_outcome(run_on, disk, root, count, work):
    files = [new_file(disk, f"{root}/{number}", b"x") for number in range(count)]
    assert run_on(disk.sync_files(files, work)) == [None] * count
    assert disk.load_of(work) == DiskLoad()


def test_a_file_that_cannot_be_synced_does_not_keep_others_from_it(run_on, disk, root):
    files = [new_file(disk, f"{root}/{number}", b"x") for number in range(9)]
    files[0].close()
    files[7].close()
    outcomes = run_on(disk.sync_files(files))
    assert [index for index, fault in enumerate(outcomes) if fault is not None] == [0, 7]
    assert isinstance(outcomes[7], StorageFault)
    assert f"{root}/7" in str(outcomes[7])


@pytest.mark.parametrize("work", WORKS)
def test_a_gathered_write_is_checksum_head_and_ranges(run_on, disk, root, work):
    target = new_file(disk, f"{root}/target", bytes(100))
    one, two = new_file(disk, f"{root}/1", b"0123456789"), new_file(disk, f"{root}/2", b"abcdef")
    ranges = [(one, 2, 3), (two, 0, 6), (one, 9, 1), (two, 3, 0)]
    run_on(disk.write_gathered(target, 7, b"head", ranges, work))
    written = gathered(b"head", b"234", b"abcdef", b"9")
    assert target.pread(1_000, 0) == bytes(7) + written + bytes(93 - len(written))
    assert disk.load_of(work) == DiskLoad()


@pytest.mark.parametrize("head", [b"", bytearray(b"h"), memoryview(b"_head_")[1:-1], bytes(70_000)])
def test_a_head_is_any_buffer_and_ranges_may_be_missing(run_on, disk, root, head):
    target = new_file(disk, f"{root}/target")
    run_on(disk.write_gathered(target, 0, head, []))
    assert target.pread(100_000, 0) == gathered(bytes(head))


def test_the_same_in_the_calling_thread_writes_the_same_bytes(run_on, disk, root):
    data = bytes(number * number % 251 for number in range(5_000))
    source = new_file(disk, f"{root}/source", data)
    ranges = [(source, start * 7, start) for start in range(600)]
    there, here = new_file(disk, f"{root}/there"), new_file(disk, f"{root}/here")
    run_on(disk.write_gathered(there, 3, b"head", ranges))
    write_gathered_now(here, 3, b"head", ranges)
    assert there.pread(1 << 20, 0) == here.pread(1 << 20, 0)
    assert there.size() > 5_000


def test_the_largest_gathered_write_is_written_whole(run_on, disk, root):
    size = GATHERED_BYTES_MAX // GATHERED_RANGES_MAX
    source = new_file(disk, f"{root}/source", bytes(range(256)) * 4)
    target = new_file(disk, f"{root}/target")
    ranges = [(source, number % 500, size) for number in range(GATHERED_RANGES_MAX)]
    run_on(disk.write_gathered(target, 0, b"head", ranges))
    expected = gathered(b"head", *(source.pread(size, start) for _, start, size in ranges))
    assert target.pread(2 * GATHERED_BYTES_MAX, 0) == expected


@pytest.mark.parametrize("at", [0, 1])
def test_a_short_range_is_a_fault_and_nothing_is_written(run_on, disk, root, at):
    source, target = new_file(disk, f"{root}/source", b"12345"), new_file(disk, f"{root}/target")
    ranges = [(source, 0, 5), (source, 4, 1)]
    ranges[at] = (source, 2, 4)
    with pytest.raises(StorageFault, match="source"):
        run_on(disk.write_gathered(target, 0, b"head", ranges))
    assert target.size() == 0


def test_a_closed_file_fails_a_gathered_write_and_is_named(run_on, disk, root):
    source, target = new_file(disk, f"{root}/source", b"12345"), new_file(disk, f"{root}/target")
    gone = new_file(disk, f"{root}/gone", b"12345")
    gone.close()
    with pytest.raises(StorageFault, match="gone"):
        run_on(disk.write_gathered(target, 0, b"", [(source, 0, 5), (gone, 0, 5)]))
    assert target.size() == 0
    with pytest.raises(StorageFault, match="gone"):
        run_on(disk.write_gathered(gone, 0, b"", [(source, 0, 5)]))


@pytest.mark.parametrize(
    ("head_bytes", "ranges"),
    [
        (0, [(0, 1)] * (GATHERED_RANGES_MAX + 1)),
        (0, [(0, GATHERED_BYTES_MAX), (0, 1)]),
        (GATHERED_BYTES_MAX + 1, []),
        (0, [(-1, 1)]),
        (0, [(0, -1)]),
    ],
    ids=["ranges", "bytes", "head", "position", "size"],
)
def test_a_gathered_write_out_of_bounds_is_a_bug(run_on, disk, root, head_bytes, ranges):
    file = new_file(disk, f"{root}/f")
    with pytest.raises(InvariantViolation):
        run_on(disk.write_gathered(file, 0, bytes(head_bytes), [(file, *one) for one in ranges]))
    assert disk.load_of(DiskWork.FLUSH) == DiskLoad()


def test_a_cancelled_caller_hears_nothing_and_later_jobs_go_on(run_on, disk, root):
    source, target = new_file(disk, f"{root}/source", b"12345"), new_file(disk, f"{root}/target")

    async def scenario() -> bytes:
        writing = asyncio.ensure_future(disk.write_gathered(target, 0, b"a", [(source, 0, 5)]))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert await disk.sync_files([source]) == [None]
        await disk.write_gathered(target, 20, b"b", [(source, 0, 5)])
        # Nobody waits for the cancelled job, and another thread may have done the later ones.
        async with asyncio.timeout(DEADLINE_S):
            while disk.load_of(DiskWork.FLUSH) != DiskLoad():
                await disk.sync_files([source])
        return target.pread(100, 20)

    assert run_on(scenario()) == gathered(b"b", b"12345")


def test_a_disk_serves_one_loop_after_the_other(disk, root):
    file = new_file(disk, f"{root}/f", b"1")
    for loop_factory in (asyncio.new_event_loop, new_event_loop, asyncio.new_event_loop):
        assert run(disk.sync_files([file]), loop_factory) == [None]
