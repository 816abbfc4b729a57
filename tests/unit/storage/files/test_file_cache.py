from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.core.errors import StorageFault
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.files.file_cache import FileCache


class Holder:
    def __init__(self) -> None:
        self.has_index = True

    def drop_index(self) -> None:
        self.has_index = False


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    paths = [str(tmp_path / name) for name in "abcd"]
    for path in paths:
        Path(path).write_bytes(path.encode())
    return paths


def test_a_file_is_opened_once(paths):
    files = FileCache(OsDisk())
    assert files.get(paths[0]) is files.get(paths[0])


def test_the_least_recently_used_file_is_dropped(paths):
    files = FileCache(OsDisk(), files_max=2)
    first, second = files.get(paths[0]), files.get(paths[1])
    assert files.get(paths[0]) is first
    files.get(paths[2])
    assert len(files) == 2
    assert files.get(paths[0]) is first
    assert files.get(paths[1]) is not second


def test_a_dropped_file_stays_usable_for_its_holder(paths):
    files = FileCache(OsDisk(), files_max=1)
    held = files.get(paths[0])
    for path in paths[1:]:
        files.get(path)
    assert held.pread(1000, 0) == paths[0].encode()


def test_a_dropped_path_is_opened_again(paths):
    files = FileCache(OsDisk())
    old = files.get(paths[0])
    Path(paths[1]).rename(paths[0])
    files.drop(paths[0])
    assert files.get(paths[0]) is not old
    assert files.get(paths[0]).pread(1000, 0) == paths[1].encode()


def test_I1_a_thread_that_opened_the_old_file_of_a_path_does_not_hide_the_new_one(paths):
    disk = OsDisk()
    files = FileCache(disk)
    old = disk.open(paths[0])
    new = disk.open(paths[1])

    class SlowDisk:
        def open(self, path):
            Path(paths[1]).rename(path)
            files.put(path, new)
            return old

    files._disk = SlowDisk()
    assert files.get(paths[0]) is old
    assert files.get(paths[0]) is new


def test_a_missing_file_is_a_fault_and_is_not_cached(tmp_path):
    files = FileCache(OsDisk())
    with pytest.raises(StorageFault):
        files.get(f"{tmp_path}/missing")
    assert len(files) == 0


def test_the_number_of_indexes_in_memory_is_bounded():
    files = FileCache(OsDisk(), indexes_max=2)
    first, second, third = Holder(), Holder(), Holder()
    for holder in (first, second, first, third):
        files.use_index(holder)
    assert (first.has_index, second.has_index, third.has_index) == (True, False, True)


def test_a_removed_segment_is_not_cached():
    files = FileCache(OsDisk(), indexes_max=1)
    first, second = Holder(), Holder()
    files.use_index(first)
    files.forget_index(first)
    files.use_index(second)
    assert first.has_index
