"""Merging as a reader, a writer and a crash see it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
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
from tidemill.testing.manual_clock import ManualClock

CHANGES = ("link", "mkdir", "unlink", "rmdir", "fsync")
"""Calls of `os` after which a crash leaves something else behind than before."""


class Crash(BaseException):
    """The process ends here."""


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def output(tmp_path) -> Path:
    """Ten rows in each of the batches 0 to 4 of an hour."""
    for batch_id in range(5):
        write_batch(tmp_path, batch_id, range(batch_id * 10, batch_id * 10 + 10))
    return tmp_path


def test_batches_of_a_closed_hour_become_one_folder_with_the_same_rows(output):
    finish(merging_of(output, done=4))

    assert folders_in(output) == [f"batch={QUERY}-0-4"]
    assert numbers_in(output) == list(range(50))
    assert len(list((output / "events").rglob("*.parquet"))) == 1
    assert [path.name for path in files_in(output / ".merge")] == []


def test_an_hour_that_the_watermark_has_not_passed_is_left_alone(output):
    merging = merging_of(output)
    merging.batch_written(BatchFolder(QUERY, 5, 5), DAY_END_MS - 16 * 3_600_000 - 1)
    finish(merging)

    assert len(folders_in(output)) == 5


def test_a_batch_that_the_checkpoint_may_repeat_is_not_merged(output):
    finish(merging_of(output, done=3))

    assert folders_in(output) == [f"batch={QUERY}-0-3", f"batch={QUERY}-4"]


def test_late_lines_are_merged_with_the_next_hour_and_other_files_keep_their_names(output):
    merging = merging_of(output, done=4)
    finish(merging)
    write_batch(output, 9, [90])
    write_batch(output, 1, [91], query="another0")
    (output / "events" / HOUR / "notes.txt").write_text("mine")

    merging.batch_written(BatchFolder(QUERY, 10, 10), DAY_END_MS + 3_600_000)
    finish(merging)

    assert folders_in(output) == ["batch=1f0c2d3e-0-9", "batch=another0-1", "notes.txt"]
    assert numbers_in(output) == [*range(50), 90, 91]


def test_a_second_pass_changes_nothing(output):
    finish(merging_of(output, done=4))
    [before] = (output / "events").rglob("*.parquet")
    inode = before.stat().st_ino
    finish(merging_of(output, done=4))

    [after] = (output / "events").rglob("*.parquet")
    assert after.stat().st_ino == inode


def test_a_full_folder_is_not_copied_again(output, monkeypatch):
    large = (output / "events" / HOUR / f"batch={QUERY}-2").rglob("*.parquet")
    monkeypatch.setattr(prepared_folder, "FULL_BYTES", next(large).stat().st_size)
    write_batch(output, 0, [0])
    write_batch(output, 4, [40])
    for batch_id in (1, 3):
        write_batch(output, batch_id, range(batch_id * 10, batch_id * 10 + 500))
    finish(merging_of(output, done=4))

    assert folders_in(output) == [
        *(f"batch={QUERY}-{name}" for name in ("0-4", "1", "2", "3")),
    ]


# --- writers -------------------------------------------------------------------------------------


def test_nothing_is_swapped_while_a_batch_is_written(output):
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        finish(merging)
        assert len(files_in(output / "events")) == 10
        assert merging_of(output).merged_labels("events", BatchFolder(QUERY, 3, 3)) == []
    finish(merging)

    assert folders_in(output) == [f"batch={QUERY}-0-4"]


def test_a_batch_that_came_while_its_hour_was_merged_is_kept(output):
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        finish(merging)
        write_batch(output, 8, [80])
    finish(merging)

    assert numbers_in(output) == [*range(50), 80]
    assert len(folders_in(output)) == 6
    assert [path.name for path in files_in(output / ".merge")] == []


@pytest.mark.parametrize("steps", range(9))
def test_a_folder_that_waits_for_a_writer_is_not_prepared_again_by_the_next_pass(output, steps):
    """The second successor would be made in the place of the first, and swapped half made."""
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        finish(merging)
        merging.batch_written(BatchFolder(QUERY, 6, 6), DAY_END_MS + 3_600_000)
        for _ in range(steps):
            merging.step()
    finish(merging)

    assert numbers_in(output) == list(range(50))
    assert folders_in(output) == [f"batch={QUERY}-0-4"]


def test_a_repeated_batch_is_told_where_its_rows_are(output):
    write_batch(output, 3, [1_000], place="date=2026-05-01/hour=09")
    merging = merging_of(output, done=4)
    assert merging.merged_labels("events", BatchFolder(QUERY, 3, 3)) == []
    finish(merging)

    for knowing in (merging, merging_of(output)):
        assert knowing.merged_labels("events", BatchFolder(QUERY, 3, 3)) == ["2026-05-01/07"]
        assert knowing.merged_labels("events", BatchFolder(QUERY, 5, 5)) == []
        assert knowing.merged_labels("events", BatchFolder("another0", 3, 3)) == []


# --- readers -------------------------------------------------------------------------------------


def reader_steps(output: Path, *, backwards: bool, found: list[int]):
    """Reads as Spark does on local files; yields wherever a swap may come in between.

    Hadoop lists a folder, looks at each name, and skips names that have gone. A folder or a file
    that it knows and cannot open is an error.
    """

    def listed(folder: Path):
        names = sorted(os.listdir(folder), reverse=backwards)
        yield
        kept = []
        for name in names:
            if (folder / name).exists() and not name.startswith("."):
                kept.append(folder / name)
            yield
        return kept

    files = []
    for batch in (yield from listed(output / "events" / HOUR)):
        files += yield from listed(batch)
        yield
    for file in files:
        found += parquet.read_table(file, partitioning=None)["offset"].to_pylist()
        yield


@pytest.mark.slow
@pytest.mark.parametrize("backwards", [False, True])
def test_a_reader_in_the_middle_of_a_swap_gets_every_row_once_or_an_error(tmp_path, backwards):
    exact = failed = 0
    for number in itertools.count():
        output = tmp_path / str(number)
        for batch_id in range(3):
            write_batch(output, batch_id, [batch_id])
        merging = merging_of(output, done=2)
        with merging_of(output).writing():
            finish(merging)  # all but the swap
        found: list[int] = []
        reader = reader_steps(output, backwards=backwards, found=found)
        steps_before = sum(1 for _ in itertools.islice(reader, number))
        finish(merging)
        try:
            for _ in reader:
                pass
        except FileNotFoundError:
            failed += 1
        else:
            assert sorted(found) == [0, 1, 2], number
            exact += 1
        if steps_before < number:
            break
    assert exact > 2
    assert failed > 2


def test_a_reader_that_has_listed_an_hour_before_it_was_announced_gets_every_row(output):
    clock = ManualClock()
    merging = merging_of(output, done=4, clock=clock)
    found: list[int] = []
    reader = reader_steps(output, backwards=False, found=found)
    next(reader)
    finish(merging)
    for _ in reader:
        pass
    assert sorted(found) == list(range(50))

    clock.advance(1)
    finish(merging)
    assert folders_in(output) == [f"batch={QUERY}-0-4"]


# --- crashes -------------------------------------------------------------------------------------


def crash_at(monkeypatch, number: int) -> list[str]:
    """Every change of files from the one with this number on raises; the calls so far."""
    calls: list[str] = []

    def counted(name, real):
        def call(*args, **kwargs):
            if len(calls) >= number:
                raise Crash
            calls.append(name)
            return real(*args, **kwargs)

        return call

    for name in CHANGES:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    swap = prepared_folder.swap_folders
    monkeypatch.setattr(prepared_folder, "swap_folders", counted("swap", swap))
    return calls


@pytest.mark.slow
def test_a_crash_at_any_change_of_files_loses_no_row_and_shows_none_twice(tmp_path):
    seen: list[str] = []
    for number in itertools.count():
        output = tmp_path / str(number)
        for batch_id in range(3):
            write_batch(output, batch_id, [batch_id])
        write_batch(output, 0, [9], query="another0")
        merging = merging_of(output, done=2)
        with pytest.MonkeyPatch.context() as patch:
            seen = crash_at(patch, number)
            with contextlib.suppress(Crash):
                finish(merging)
        assert numbers_in(output) == [0, 1, 2, 9], seen
        finish(merging_of(output, done=2))
        assert numbers_in(output) == [0, 1, 2, 9], seen
        assert folders_in(output) == ["batch=1f0c2d3e-0-2", "batch=another0-0"], seen
        assert [path.name for path in files_in(output / ".merge")] == [], seen
        if len(seen) < number:
            break
    assert set(seen) == {*CHANGES, "swap"}


# --- where it cannot work ------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["hdfs://host/out", "s3a://bucket/out"])
def test_other_storage_is_left_alone_and_said_so_once(address, caplog):
    merging = FileMerging(address, {"events": True}, is_active=True, clock=hasty_clock())
    merging.batch_written(BatchFolder(QUERY, 5, 5), DAY_END_MS)
    with merging.writing():
        assert merging.merged_labels("events", BatchFolder(QUERY, 1, 1)) == []
    finish(merging)

    assert [record.getMessage() for record in caplog.records] == [
        f"the small files in {address} are not merged: they are not on a local path"
    ]


def test_a_file_system_without_swaps_is_left_alone_and_said_so_once(output, monkeypatch, caplog):
    def refuse(folder):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(file_merging, "check_swap", refuse)
    finish(merging_of(output, done=4))

    assert len(folders_in(output)) == 5
    assert len(caplog.records) == 1


def test_a_damaged_file_leaves_its_hour_as_it_is_and_others_are_merged(output, caplog):
    other = "date=2026-05-01/hour=08"
    for batch_id in (0, 1):
        write_batch(output, batch_id, [100 + batch_id], place=other)
    [damaged] = (output / "events" / HOUR / f"batch={QUERY}-2").glob("*.parquet")
    damaged.write_bytes(b"PAR1 and then nothing")
    finish(merging_of(output, done=4))

    assert len(folders_in(output)) == 5
    assert folders_in(output, other) == [f"batch={QUERY}-0-1"]
    assert len(caplog.records) == 1


def test_a_disk_without_room_for_copies_is_left_to_the_results(output, monkeypatch):
    usage = shutil.disk_usage(output)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    finish(merging_of(output, done=4))

    assert len(folders_in(output)) == 5


@pytest.mark.parametrize("removed", ["events", "events/date=2026-05-01", f"events/{HOUR}"])
def test_results_that_a_user_removes_meanwhile_stay_removed(output, removed, caplog):
    merging = merging_of(output, done=4)
    with merging_of(output).writing():
        finish(merging)
        shutil.rmtree(output / removed)
    finish(merging)

    assert numbers_in(output) == []
    assert files_in(output / ".merge") == []
    assert caplog.records == []


def test_merging_can_be_turned_off(output):
    merging = FileMerging(str(output), {"events": True}, is_active=False, clock=hasty_clock())
    merging.batch_written(BatchFolder(QUERY, 5, 5), DAY_END_MS)
    finish(merging)

    assert len(folders_in(output)) == 5
