"""Merging on damaged files, full disks, foreign files and folders, and beside careless users."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.unit.spark.pipelines.merging.result_files import (
    DAY_END_MS,
    HOUR,
    QUERY,
    finish,
    folders_in,
    hasty_clock,
    merging_of,
    numbers_in,
    write_batch,
)
from tidemill.spark.pipelines.merging import file_merging, prepared_folder
from tidemill.spark.pipelines.merging.batch_folders import BatchFolder
from tidemill.spark.pipelines.merging.file_merging import FileMerging

NEXT_HOUR = "date=2026-05-01/hour=08"
MERGED = f"batch={QUERY}-0-4"


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def output(tmp_path) -> Path:
    """Ten rows in each of the batches 0 to 4 of an hour."""
    for batch_id in range(5):
        write_batch(tmp_path, batch_id, range(batch_id * 10, batch_id * 10 + 10))
    return tmp_path


def next_hour(output: Path) -> None:
    """Another hour with two batches."""
    for batch_id in (0, 1):
        write_batch(output, batch_id, [100 + batch_id], place=NEXT_HOUR)


def batch_folder(output: Path, batch_id: int) -> Path:
    return output / "events" / HOUR / f"batch={QUERY}-{batch_id}"


def staged(output: Path) -> list[Path]:
    return [path for path in (output / ".merge").rglob("*") if not path.is_dir()]


def refuse_swaps(monkeypatch) -> None:
    def refuse(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_merging, "check_swap", refuse)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [slice(4, 60), slice(-60, -8)], ids=["page", "footer"])
def test_a_file_that_arrow_cannot_decode_keeps_no_other_hour_from_being_merged(
    output, damaged, caplog
):
    next_hour(output)
    [path] = batch_folder(output, 2).glob("*.parquet")
    content = bytearray(path.read_bytes())
    content[damaged] = b"\xff" * len(content[damaged])
    path.write_bytes(content)
    finish(merging_of(output, done=4))

    assert folders_in(output) == [f"batch={QUERY}-{n}" for n in range(5)]
    assert folders_in(output, NEXT_HOUR) == [f"batch={QUERY}-0-1"]
    assert staged(output) == []
    assert len(caplog.records) == 1


def test_a_row_that_differs_from_its_checksum_is_not_merged(output):
    [path] = batch_folder(output, 2).glob("*.parquet")
    parquet.write_table(
        parquet.read_table(path, partitioning=None),
        path,
        use_deprecated_int96_timestamps=True,
        store_schema=False,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    content = bytearray(path.read_bytes())
    content[content.index((25).to_bytes(8, "little"))] = 99
    path.write_bytes(content)
    finish(merging_of(output, done=4))

    assert len(folders_in(output)) == 5


def test_merged_files_have_checksums(output):
    finish(merging_of(output, done=4))
    [path] = (output / "events" / HOUR / MERGED).iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 1
    path.write_bytes(content)

    with pytest.raises(OSError, match="CRC"):
        parquet.read_table(path, partitioning=None, page_checksum_verification=True)


# --- disks ---------------------------------------------------------------------------------------


def test_a_disk_that_becomes_full_gets_back_what_the_copies_took(output, monkeypatch, caplog):
    next_hour(output)
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        while not staged(output):  # the first hour waits for a moment without a writer
            merging.step()
        merging.step()
        real = os.fsync

        def full(number):
            if stat.S_ISREG(os.fstat(number).st_mode):
                raise OSError(errno.ENOSPC, "No space left on device")
            real(number)

        monkeypatch.setattr(os, "fsync", full)
        finish(merging)

    assert staged(output) == []
    assert numbers_in(output) == [*range(50), 100, 101]
    assert len(caplog.records) == 1


def test_a_folder_without_permission_keeps_no_other_hour_from_being_merged(
    output, monkeypatch, caplog
):
    next_hour(output)
    real = Path.mkdir

    def mkdir(self, *args, **options):
        if self.name == MERGED:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        real(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    finish(merging_of(output, done=4))

    assert len(folders_in(output)) == 5
    assert folders_in(output, NEXT_HOUR) == [f"batch={QUERY}-0-1"]
    assert len(caplog.records) == 1


def test_a_folder_that_may_not_be_listed_stops_neither_batches_nor_merging(output, monkeypatch):
    closed = "date=2026-04-30"
    write_batch(output, 0, [100], place=f"{closed}/hour=08")
    real = Path.iterdir

    def iterdir(self):
        if self.name == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    merging = merging_of(output, done=4)
    assert merging.merged_labels("events", BatchFolder(QUERY, 3, 3)) == []
    finish(merging)

    assert folders_in(output) == [MERGED]


def test_merged_rows_are_known_also_where_folders_can_no_longer_be_swapped(output, monkeypatch):
    finish(merging_of(output, done=4))
    refuse_swaps(monkeypatch)
    later = merging_of(output)

    assert later.merged_labels("events", BatchFolder(QUERY, 3, 3)) == ["2026-05-01/07"]


def test_a_run_that_cannot_swap_folders_still_keeps_others_from_it_while_it_writes(
    output, monkeypatch
):
    merging = merging_of(output, done=4)
    refuse_swaps(monkeypatch)
    with merging_of(output).writing():
        finish(merging)
        assert numbers_in(output) == list(range(50))
        assert len(list((output / "events").rglob("*.parquet"))) == 5


def test_a_run_that_does_not_merge_says_nothing_and_makes_no_folder(tmp_path, caplog):
    FileMerging("hdfs://host/out", {"events": True}, is_active=False, clock=hasty_clock())
    FileMerging(str(tmp_path), {"events": True}, is_active=False, clock=hasty_clock())

    assert caplog.records == []
    assert list(tmp_path.iterdir()) == []


# --- crashes -------------------------------------------------------------------------------------


def test_what_a_crash_left_is_removed_after_the_swap_is_durable(output, monkeypatch):
    real = prepared_folder.swap_folders

    def swap(first, second):
        real(first, second)
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_folder, "swap_folders", swap)
        with pytest.raises(Crash):
            finish(merging_of(output, done=4))
    calls: list[str] = []
    sync, unlink = os.fsync, os.unlink

    def counted_sync(number):
        calls.append(os.readlink(f"/proc/self/fd/{number}"))
        sync(number)

    def counted_unlink(*args, **options):
        calls.append("unlink")
        unlink(*args, **options)

    monkeypatch.setattr(os, "fsync", counted_sync)
    monkeypatch.setattr(os, "unlink", counted_unlink)
    finish(merging_of(output, done=4))

    before = calls[: calls.index("unlink")]
    assert str((output / "events" / HOUR).parent) in before
    assert str(output / ".merge" / QUERY / "events/2026-05-01") in before


# --- users ---------------------------------------------------------------------------------------


def test_a_batch_waits_for_the_swap_of_one_folder_only(output, monkeypatch):
    next_hour(output)
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        finish(merging)  # both wait for the writer
    swapped_in_a_step: list[int] = []
    real = prepared_folder.swap_folders

    def swap(first, second):
        swapped_in_a_step[-1] += 1
        real(first, second)

    monkeypatch.setattr(prepared_folder, "swap_folders", swap)
    is_working = True
    while is_working:
        swapped_in_a_step.append(0)
        is_working = merging.step()

    assert sum(swapped_in_a_step) == 2
    assert max(swapped_in_a_step) == 1


def test_a_user_who_removes_the_working_folder_does_not_unlock_a_writer(output):
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        shutil.rmtree(output / ".merge")
        finish(merging)
        assert len(list((output / "events").rglob("*.parquet"))) == 5
    finish(merging)

    assert folders_in(output) == [MERGED]


def test_a_successor_of_which_a_user_has_removed_a_part_is_not_used(output):
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        finish(merging)
        [path] = staged(output)
        path.unlink()
    finish(merging)

    assert numbers_in(output) == list(range(50))
    assert len(folders_in(output)) == 5


def test_a_folder_that_goes_while_it_is_linked_is_no_reason_to_stop(output, monkeypatch, caplog):
    """Another run has merged its own batches of the hour at that moment."""
    away = write_batch(output, 1, [91], query="another0").parent
    next_hour(output)
    real = os.link

    def link(source, target, **options):
        if away.exists():
            shutil.rmtree(away)
        real(source, target, **options)

    monkeypatch.setattr(os, "link", link)
    merging = merging_of(output, done=4)
    finish(merging)

    assert folders_in(output) == [f"batch={QUERY}-{n}" for n in range(5)]
    assert folders_in(output, NEXT_HOUR) == [f"batch={QUERY}-0-1"]
    assert caplog.records == []


def test_an_announced_folder_of_another_run_that_goes_meanwhile_is_no_reason_to_stop(
    output, monkeypatch, caplog
):
    announced = output / "events" / HOUR / "batch=another0-1-2"
    announced.mkdir()
    real = prepared_folder._is_empty_batch

    def look(path):
        if announced.exists():
            announced.rmdir()
        return real(path)

    monkeypatch.setattr(prepared_folder, "_is_empty_batch", look)
    merging = merging_of(output, done=4)
    finish(merging)
    assert caplog.records == []

    merging.batch_written(BatchFolder(QUERY, 6, 6), DAY_END_MS + 3_600_000)
    finish(merging)
    assert folders_in(output) == [MERGED]


@pytest.mark.parametrize("name", ["007", "7-7", "9-2"])
def test_rows_of_a_folder_with_almost_our_name_are_there_once(output, name):
    folder = write_batch(output, 7, [77]).parent
    folder.rename(folder.parent / f"batch={QUERY}-{name}")
    finish(merging_of(output, done=9))

    assert numbers_in(output) == [*range(50), 77]


@pytest.mark.parametrize("name", [".notes.txt", "_hidden.parquet", ".hidden.parquet", "sub/x"])
def test_what_a_user_has_put_into_the_folder_of_a_batch_stays_as_it_is(output, name):
    path = batch_folder(output, 2) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"mine")
    finish(merging_of(output, done=4))

    assert path.read_bytes() == b"mine"
    assert folders_in(output) == [MERGED, f"batch={QUERY}-2"]


def test_an_announced_folder_with_a_foreign_file_has_no_rows_of_a_batch(output):
    announced = output / "events" / HOUR / f"batch={QUERY}-0-9"
    announced.mkdir()
    (announced / ".directory").touch()

    assert merging_of(output).merged_labels("events", BatchFolder(QUERY, 3, 3)) == []


@pytest.mark.parametrize("place", [HOUR, "date=2026-05-01"])
def test_a_folder_that_a_user_has_moved_and_linked_stays_where_it_is(
    output, place, tmp_path_factory, caplog
):
    write_batch(output, 0, [100], place="date=2026-05-02/hour=08")
    write_batch(output, 1, [101], place="date=2026-05-02/hour=08")
    moved = tmp_path_factory.mktemp("archive") / "moved"
    folder = output / "events" / place
    shutil.move(folder, moved)
    folder.symlink_to(moved)
    finish(merging_of(output, done=4))

    assert folder.is_symlink()
    assert len(folders_in(output)) == 5
    assert caplog.records == []


def test_those_who_could_list_the_hour_can_list_it_while_it_is_merged(output):
    merging = merging_of(output, done=4)
    before = os.umask(0o077)
    try:
        with merging_of(output).writing():
            finish(merging)
    finally:
        os.umask(before)

    announced = output / "events" / HOUR / MERGED
    assert announced.stat().st_mode == batch_folder(output, 0).stat().st_mode


def test_those_who_could_read_the_files_can_read_the_merged_one(output):
    for path in (output / "events").rglob("*.parquet"):
        path.chmod(0o664)
    before = os.umask(0o077)
    try:
        finish(merging_of(output, done=4))
    finally:
        os.umask(before)

    [merged] = (output / "events").rglob("*.parquet")
    assert stat.S_IMODE(merged.stat().st_mode) == 0o664
