"""The contract of Disk: the real and the simulated one pass the same suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.core.errors import StorageFault, UserError
from tidemill.storage.files.disk import Disk, OsDisk
from tidemill.storage.files.disk_work import DiskLoad, DiskWork
from tidemill.testing.sim.disk import SimDisk


@pytest.fixture(params=["os", "sim"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    if request.param == "sim":
        yield SimDisk()
        return
    made = OsDisk()
    yield made
    made.close()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = str(tmp_path / "disk")
    disk.make_directories(path)
    return path


def test_bytes_are_read_back_from_where_they_were_written(disk, root):
    file = disk.open(f"{root}/a", create=True)
    assert file.pwrite([b"one", memoryview(b"two"), bytearray(b"three")], 0) == 11
    assert file.pwrite([b"XY"], 3) == 2
    assert file.pread(100, 0) == b"oneXYothree"
    assert file.pread(3, 3) == b"XYo"
    file.close()


def test_a_read_ends_at_the_end_of_the_file(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([b"abc"], 0)
    assert file.pread(10, 2) == b"c"
    assert file.pread(10, 3) == b""
    assert file.pread(10, 99) == b""
    file.close()


def test_a_write_past_the_end_leaves_zeros_in_between(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([b"z"], 5)
    assert file.size() == 6
    assert file.pread(6, 0) == b"\0\0\0\0\0z"
    file.close()


def test_many_chunks_are_written_by_one_call(disk, root):
    file = disk.open(f"{root}/a", create=True)
    chunks = [b"%05d" % number for number in range(3000)]
    assert file.pwrite(chunks, 1) == 15_000
    assert file.pread(15_000, 1) == b"".join(chunks)
    file.close()


def test_truncate_cuts_and_extends(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([b"abcdef"], 0)
    file.truncate(2)
    assert file.size() == 2
    file.truncate(4)
    assert file.pread(10, 0) == b"ab\0\0"
    file.close()


def test_create_refuses_a_file_that_exists(disk, root):
    disk.open(f"{root}/a", create=True).close()
    with pytest.raises(StorageFault):
        disk.open(f"{root}/a", create=True)


@pytest.mark.parametrize("call", ["open", "size", "read_file", "list_names"])
def test_a_missing_file_is_a_storage_fault(disk, root, call):
    with pytest.raises(StorageFault):
        getattr(disk, call)(f"{root}/missing")


def test_an_open_file_outlives_its_name(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([b"kept"], 0)
    disk.unlink(f"{root}/a")
    assert not disk.exists(f"{root}/a")
    assert file.pread(4, 0) == b"kept"
    file.close()


def test_names_are_listed_sorted(disk, root):
    for name in ("c", "a", "b"):
        disk.open(f"{root}/{name}", create=True).close()
    disk.make_directories(f"{root}/aa/deep")
    assert disk.list_names(root) == ["a", "aa", "b", "c"]
    assert disk.list_names(f"{root}/aa") == ["deep"]


def test_make_directories_accepts_existing_directories(disk, root):
    disk.make_directories(f"{root}/x/y")
    disk.make_directories(f"{root}/x/y")
    assert disk.exists(f"{root}/x/y")


def test_size_and_read_file_see_the_whole_file(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([b"12345"], 0)
    assert disk.size(f"{root}/a") == 5
    assert disk.read_file(f"{root}/a") == b"12345"
    file.close()


def test_atomic_write_replaces_the_file_and_leaves_nothing_else(disk, root):
    disk.write_file_atomically(f"{root}/a", b"old")
    disk.write_file_atomically(f"{root}/a", memoryview(b"newer"))
    assert disk.read_file(f"{root}/a") == b"newer"
    assert disk.list_names(root) == ["a"]


def test_an_atomic_write_replaces_the_leftover_of_an_earlier_one(disk, root):
    disk.open(f"{root}/a.tmp", create=True).close()
    disk.write_file_atomically(f"{root}/a", b"new")
    assert disk.read_file(f"{root}/a") == b"new"


def test_rename_replaces_a_file(disk, root):
    disk.write_file_atomically(f"{root}/a", b"a")
    disk.write_file_atomically(f"{root}/b", b"b")
    disk.rename(f"{root}/a", f"{root}/b")
    assert disk.list_names(root) == ["b"]
    assert disk.read_file(f"{root}/b") == b"a"


def test_rename_moves_a_directory_with_its_files(disk, root):
    disk.make_directories(f"{root}/x")
    disk.write_file_atomically(f"{root}/x/a", b"a")
    disk.rename(f"{root}/x", f"{root}/y")
    assert disk.read_file(f"{root}/y/a") == b"a"
    assert not disk.exists(f"{root}/x")


def test_rename_of_nothing_is_a_storage_fault(disk, root):
    with pytest.raises(StorageFault):
        disk.rename(f"{root}/a", f"{root}/b")


def test_removing_what_does_not_exist_is_not_an_error(disk, root):
    disk.unlink(f"{root}/a")
    disk.remove_directory(f"{root}/x")


def test_only_an_empty_directory_is_removed(disk, root):
    disk.make_directories(f"{root}/x")
    disk.write_file_atomically(f"{root}/x/a", b"a")
    with pytest.raises(StorageFault):
        disk.remove_directory(f"{root}/x")
    disk.unlink(f"{root}/x/a")
    disk.remove_directory(f"{root}/x")
    assert disk.list_names(root) == []


def test_sync_of_file_and_directory_succeed(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([b"a"], 0)
    file.sync()
    disk.sync_directory(root)
    file.close()


def test_sync_of_a_missing_directory_is_a_storage_fault(disk, root):
    with pytest.raises(StorageFault):
        disk.sync_directory(f"{root}/x")


def test_a_resident_view_shows_the_bytes_and_cannot_be_written(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([bytes(range(256)) * 64], 0)
    view = file.try_resident_view(4000, 500)
    if view is not None:  # the kernel decides whether pages are resident
        assert bytes(view) == (bytes(range(256)) * 64)[4000:4500]
        assert view.readonly
    file.close()


def test_no_view_past_the_end_of_the_file(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([bytes(8192)], 0)
    assert file.try_resident_view(8000, 193) is None
    file.close()


def test_a_view_stays_valid_after_its_file_is_closed_and_gone(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.pwrite([b"v" * 8192], 0)
    view = file.try_resident_view(0, 8192)
    file.close()
    disk.unlink(f"{root}/a")
    assert view is None or bytes(view) == b"v" * 8192


def test_a_closed_file_may_be_closed_again_but_not_used(disk, root):
    file = disk.open(f"{root}/a", create=True)
    file.close()
    file.close()
    with pytest.raises(StorageFault):
        file.pread(1, 0)


def test_a_second_lock_is_refused_until_the_first_is_released(disk, root):
    held = disk.lock(f"{root}/.lock")
    with pytest.raises(UserError, match=r"\.lock"):
        disk.lock(f"{root}/.lock")
    held.close()
    disk.lock(f"{root}/.lock").close()


def test_the_usable_space_is_not_larger_than_the_volume(disk, root):
    space = disk.space(root)
    assert 0 < space.usable_bytes <= space.total_bytes


def test_a_file_is_dated_by_its_last_write_or_rename(disk, root):
    file = disk.open(f"{root}/a", create=True)
    made_ms = disk.changed_ms(f"{root}/a")
    file.pwrite([b"x"], 0)
    written_ms = disk.changed_ms(f"{root}/a")
    disk.rename(f"{root}/a", f"{root}/b")
    assert made_ms <= written_ms <= disk.changed_ms(f"{root}/b")
    with pytest.raises(StorageFault):
        disk.changed_ms(f"{root}/a")


@pytest.mark.parametrize("work", DiskWork)
def test_run_gives_the_result_or_the_error_of_the_operation(run, disk, root, work):
    async def scenario() -> int:
        assert await disk.run(lambda: 6 * 7, work) == 42
        with pytest.raises(StorageFault):
            await disk.run(lambda: disk.size(f"{root}/missing"), work)
        assert disk.load_of(work) == DiskLoad()
        return 1

    assert run(scenario()) == 1
