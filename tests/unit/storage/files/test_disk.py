"""Behaviour of the real disk alone; tests/contract/test_disk.py covers every disk."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from tidemill.core.errors import DiskFull, StorageFault, UserError
from tidemill.core.limits import REMAP_GROWTH_BYTES
from tidemill.storage.files.disk import OsDisk


@pytest.fixture
def disk() -> OsDisk:
    return OsDisk()


def descriptors_of(path: Path) -> int:
    """How many descriptors of this process, which may run other threads, name the file."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{name}") == str(path)
    return count


def test_S47_files_and_directories_are_for_the_owner_only(disk, tmp_path):
    disk.make_directories(f"{tmp_path}/d")
    disk.open(f"{tmp_path}/d/f", create=True).close()
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "d" / "f").stat().st_mode) == 0o600


def test_S47_symbolic_links_are_not_followed(disk, tmp_path):
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageFault):
        disk.open(f"{tmp_path}/link")
    with pytest.raises(StorageFault):
        disk.read_file(f"{tmp_path}/link")


def test_a_short_write_is_completed(disk, tmp_path, monkeypatch):
    real_pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: real_pwrite(fd, memoryview(data)[:7], at)
    )
    monkeypatch.setattr(os, "pwritev", lambda fd, chunks, at: real_pwrite(fd, chunks[0][:2], at))
    file = disk.open(f"{tmp_path}/f", create=True)
    chunks = [b"one", b"", b"four" * 9, memoryview(b"five")]
    assert file.pwrite(chunks, 3) == 43
    assert file.pwrite([b"x" * 20], 46) == 20
    assert file.pread(100, 3) == b"".join(chunks) + b"x" * 20


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageFault)],
)
def test_R12_a_full_disk_is_distinguished_from_a_broken_one(
    disk,
    tmp_path,
    monkeypatch,
    code,
    kind,
):
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fail)
    file = disk.open(f"{tmp_path}/f", create=True)
    with pytest.raises(StorageFault) as fault:
        file.pwrite([b"x"], 0)
    assert type(fault.value) is kind


def test_a_dropped_file_frees_its_descriptor(disk, tmp_path):
    file = disk.open(f"{tmp_path}/f", create=True)
    file.pwrite([bytes(8192)], 0)
    file.try_resident_view(0, 8192)
    file.try_resident_view(0, 8192)
    assert descriptors_of(tmp_path / "f") > 0
    del file
    assert descriptors_of(tmp_path / "f") == 0


def test_a_file_that_stopped_growing_is_mapped_on_the_second_request(disk, tmp_path):
    file = disk.open(f"{tmp_path}/f", create=True)
    file.pwrite([b"ab" * 5000], 0)
    assert file.try_resident_view(0, 10_000) is None
    view = file.try_resident_view(5_001, 4_999)
    assert view is not None
    assert bytes(view) == (b"ab" * 5000)[5_001:]


def test_a_growing_file_is_mapped_again_after_enough_growth(disk, tmp_path):
    file = disk.open(f"{tmp_path}/f", create=True)
    file.pwrite([bytes(REMAP_GROWTH_BYTES)], 0)
    assert file.try_resident_view(0, REMAP_GROWTH_BYTES) is not None
    file.pwrite([b"x" * 100], REMAP_GROWTH_BYTES)
    assert file.try_resident_view(REMAP_GROWTH_BYTES, 50) is None
    file.pwrite([b"x" * REMAP_GROWTH_BYTES], REMAP_GROWTH_BYTES)
    view = file.try_resident_view(REMAP_GROWTH_BYTES, 50)
    assert view is not None
    assert bytes(view) == b"x" * 50


def test_no_view_of_pages_that_are_not_in_memory(disk, tmp_path):
    file = disk.open(f"{tmp_path}/f", create=True)
    file.pwrite([b"x" * 65_536], 0)
    file.sync()
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    file.try_resident_view(0, 65_536)
    assert file.try_resident_view(0, 65_536) is None
    file.pread(65_536, 0)
    assert file.try_resident_view(0, 65_536) is not None


def test_a_refused_lock_names_the_process_that_holds_it(disk, tmp_path):
    held = disk.lock(f"{tmp_path}/.lock")
    with pytest.raises(UserError, match=str(os.getpid())):
        disk.lock(f"{tmp_path}/.lock")
    held.close()


def test_the_threads_end_with_the_disk(run, disk):
    import threading

    thread = run(disk.run(threading.current_thread))
    assert thread.name.startswith("disk")
    assert thread.is_alive()
    disk.close()
    disk.close()
    assert not thread.is_alive()
