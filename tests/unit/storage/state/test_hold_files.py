"""Runs and snapshots of held records: what is damaged or cut is not used, what is unused goes."""

from __future__ import annotations

from mmap import mmap

import pytest

from tidemill.core.errors import StorageFault
from tidemill.core.rng import SeededRng
from tidemill.storage.files.checked_file import encode_checked
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.state.hold_files import HoldFiles, StoredHolds
from tidemill.testing.sim.disk import SimDisk

HOME = "/data/topic-0"


@pytest.fixture
def home(disk: SimDisk) -> SimDisk:
    disk.make_directories(HOME)
    disk.sync_directory("/")
    disk.sync_directory("/data")
    return disk


def _open(disk: SimDisk) -> HoldFiles:
    return HoldFiles(disk, HOME, disk.list_names(HOME))


def _newest(files: HoldFiles, end_offset: int = 1_000) -> StoredHolds | None:
    return next(files.iter_newest(end_offset), None)


def _numbers(disk: SimDisk, suffix: str) -> list[int]:
    names = [name for name in disk.list_names(HOME) if name.endswith(suffix)]
    return [int(name.removesuffix(suffix)) for name in names]


@pytest.mark.parametrize("is_resident", [True, False])
def test_a_snapshot_comes_back_with_its_runs(home, is_resident):
    home.is_resident = is_resident
    files = _open(home)
    assert bytes(files.write_run(3, b"three")) == b"three"
    files.write_run(4, b"four")
    files.write_snapshot(70, b"state", [3, 4])
    found = _newest(_open(home))
    assert found is not None
    assert (found.offset, bytes(found.state)) == (70, b"state")
    assert {number: bytes(run) for number, run in found.runs.items()} == {3: b"three", 4: b"four"}


def test_a_run_of_a_real_disk_is_a_view_of_its_file(tmp_path):
    disk = OsDisk()
    files = HoldFiles(disk, str(tmp_path), [])
    run = files.write_run(0, b"x" * 10_000)
    assert bytes(run) == b"x" * 10_000
    assert isinstance(run.obj, mmap)
    files.drop_unused([])
    assert disk.list_names(str(tmp_path)) == []
    assert bytes(run) == b"x" * 10_000, "a view outlives the name of its file"
    disk.close()


def test_the_numbers_of_runs_are_used_once(home):
    files = _open(home)
    assert files.next_run == 0
    files.write_run(5, b"run")
    assert files.next_run == 6
    assert _open(home).next_run == 6


def test_a_snapshot_behind_the_end_of_the_log_is_removed_at_once(home):
    files = _open(home)
    files.write_snapshot(70, b"old", [])
    files.write_snapshot(90, b"new", [])
    found = _newest(files, end_offset=89)
    assert found is not None
    assert found.offset == 70
    assert _numbers(home, ".holds") == [70]


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_that_was_removed_does_not_come_back_with_a_crash(home, seed):
    files = _open(home)
    files.write_snapshot(90, b"cut", [])
    files.drop_after(80)
    after = home.crash(SeededRng(seed))
    assert _numbers(after, ".holds") == []


def test_the_newest_two_snapshots_are_kept(home):
    files = _open(home)
    for offset in (10, 20, 30):
        files.write_snapshot(offset, b"state", [])
    assert _numbers(home, ".holds") == [20, 30]
    found = _newest(_open(home), end_offset=25)
    assert found is not None
    assert found.offset == 20


def test_a_damaged_snapshot_gives_way_to_the_one_before(home):
    files = _open(home)
    files.write_snapshot(10, b"first", [])
    files.write_snapshot(20, b"second", [])
    home.flip_bit(f"{HOME}/{20:020d}.holds", 30)
    found = _newest(_open(home))
    assert found is not None
    assert found.offset == 10


@pytest.mark.parametrize("damage", ["lost", "flipped"])
def test_a_snapshot_without_one_of_its_runs_is_no_snapshot(home, damage):
    files = _open(home)
    files.write_run(3, b"three")
    files.write_snapshot(70, b"state", [3])
    path = f"{HOME}/{3:020d}.holdrun"
    if damage == "lost":
        home.unlink(path)
    else:
        home.flip_bit(path, 18)
    assert _newest(_open(home)) is None


def test_runs_go_that_neither_a_snapshot_nor_the_book_needs(home):
    files = _open(home)
    for number in range(4):
        files.write_run(number, b"run")
    files.write_snapshot(10, b"state", [0])
    files.write_snapshot(20, b"state", [1])
    files.drop_unused([2])
    assert _numbers(home, ".holdrun") == [0, 1, 2]
    files.write_snapshot(30, b"state", [2])
    files.drop_unused([2])
    assert _numbers(home, ".holdrun") == [1, 2]


def test_no_run_goes_while_a_snapshot_is_unread(home):
    files = _open(home)
    files.write_run(0, b"run")
    files.write_run(1, b"run")
    files.write_snapshot(10, b"state", [0])
    again = _open(home)
    again.drop_unused([])
    assert _numbers(home, ".holdrun") == [0, 1]
    assert len(list(again.iter_newest(1_000))) == 1
    again.drop_unused([])
    assert _numbers(home, ".holdrun") == [0]


def test_a_run_that_cannot_be_written_is_a_fault_and_no_run(home):
    files = _open(home)
    home.fail("pwrite", ".holdrun")
    with pytest.raises(StorageFault):
        files.write_run(0, b"run")
    assert _numbers(home, ".holdrun") == []
    assert files.next_run == 1


@pytest.mark.parametrize("kind", [".holds", ".holdrun"])
def test_a_file_of_another_version_is_made_again(home, kind):
    """The log has all of it: an upgrade, or a step back, must not need the files."""
    files = _open(home)
    files.write_run(3, b"three")
    files.write_snapshot(70, b"state", [3])
    path = f"{HOME}/{70 if kind == '.holds' else 3:020d}{kind}"
    other = encode_checked(b"HSNP" if kind == ".holds" else b"HRUN", 1, b"other")
    home.write_file_atomically(path, other)
    assert _newest(_open(home)) is None
    assert _numbers(home, ".holds") == []
