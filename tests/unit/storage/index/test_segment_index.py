from __future__ import annotations

import pytest

from tests.support.batches import batch
from tidemill.core.rng import SeededRng
from tidemill.storage.files.disk import DiskFile
from tidemill.storage.index.segment_index import SegmentIndex
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import MAGIC_AT, CorruptBatch, read_header

BATCHES = [batch(offset, times=[1_000 + offset % 7 * 10]) for offset in range(40)]
BATCH_BYTES = len(BATCHES[0])
INTERVAL_BYTES = 3 * BATCH_BYTES
PATH, INDEX, TIME_INDEX = (f"/d/{0:020d}.{kind}" for kind in ("log", "index", "timeindex"))


def note(index: SegmentIndex, data: bytes, position: int) -> None:
    header = read_header(data)
    index.note(header.base_offset, header.max_timestamp, position)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/d")
    return disk


@pytest.fixture
def file(disk: SimDisk) -> DiskFile:
    file = disk.open(PATH, create=True)
    file.pwrite(BATCHES, 0)
    return file


def load(disk: SimDisk, file: DiskFile, *, batches: int = len(BATCHES)) -> SegmentIndex:
    return SegmentIndex.load(
        disk,
        "/d",
        file,
        base_offset=0,
        size_bytes=batches * BATCH_BYTES,
        interval_bytes=INTERVAL_BYTES,
    )


def store(disk: SimDisk, index: SegmentIndex) -> None:
    for path, position, block in index.take_blocks("/d"):
        disk.open(path, create=not disk.exists(path)).pwrite([block], position)


def built() -> SegmentIndex:
    index = SegmentIndex.empty(0, interval_bytes=INTERVAL_BYTES)
    for number, data in enumerate(BATCHES):
        note(index, data, number * BATCH_BYTES)
    return index


def content(index: SegmentIndex) -> tuple[object, ...]:
    return (
        index.offsets.offsets,
        index.offsets.positions,
        index.times.timestamps,
        index.max_timestamp,
    )


def test_an_entry_comes_at_most_every_interval():
    index = built()
    assert list(index.offsets.offsets) == list(range(3, 40, 3))
    assert list(index.offsets.positions) == [BATCH_BYTES * at for at in range(3, 40, 3)]


def test_an_entry_knows_the_greatest_time_before_it():
    index = built()
    assert list(index.times.timestamps)[:4] == [1_020, 1_050, 1_060, 1_060]
    assert index.max_timestamp == 1_060


def test_R10_a_lost_index_is_rebuilt_from_the_segment(disk, file):
    assert content(load(disk, file)) == content(built())


def test_a_stored_index_is_read_back(disk, file):
    store(disk, built())
    assert content(load(disk, file)) == content(built())


def test_an_index_is_stored_in_pieces(disk, file):
    index = SegmentIndex.empty(0, interval_bytes=INTERVAL_BYTES)
    for number, data in enumerate(BATCHES):
        note(index, data, number * BATCH_BYTES)
        if number in (10, 11, 25):
            store(disk, index)
    found = load(disk, file)
    assert content(found) == content(built())
    store(disk, found)
    assert content(load(disk, file)) == content(built())


def test_what_was_stored_is_not_stored_again():
    index = built()
    assert index.take_blocks("/d")
    assert index.take_blocks("/d") == []


def cut(disk: SimDisk, path: str) -> None:
    disk.open(path).truncate(disk.size(path) // 2)


def flip(disk: SimDisk, path: str) -> None:
    disk.flip_bit(path, SeededRng(1).below(disk.size(path)))


@pytest.mark.parametrize("path", [INDEX, TIME_INDEX])
@pytest.mark.parametrize("damage", [cut, flip, SimDisk.unlink])
def test_R10_a_damaged_index_is_rebuilt_from_the_segment(disk, file, path, damage):
    store(disk, built())
    damage(disk, path)
    assert content(load(disk, file)) == content(built())


def test_R10_an_index_of_another_history_is_not_trusted(disk):
    store(disk, built())
    file = disk.open(PATH, create=True)
    other = [batch(2 * offset, 2, value=b"other") for offset in range(30)]
    file.pwrite(other, 0)
    size_bytes = sum(map(len, other))
    index = SegmentIndex.load(
        disk, "/d", file, base_offset=0, size_bytes=size_bytes, interval_bytes=INTERVAL_BYTES
    )
    for offset, position in zip(index.offsets.offsets, index.offsets.positions, strict=True):
        assert read_header(file.pread(100, position)).base_offset == offset
    assert not disk.exists(INDEX)


def test_an_index_that_reaches_past_the_segment_is_not_trusted(disk, file):
    store(disk, built())
    assert len(load(disk, file, batches=10).offsets) == 3


def test_a_cut_removes_entries_and_lowers_the_greatest_time(file):
    index = built().cut(file, 5 * BATCH_BYTES)
    assert list(index.offsets.offsets) == [3]
    assert index.max_timestamp == 1_040
    note(index, BATCHES[5], 5 * BATCH_BYTES)
    note(index, BATCHES[6], 6 * BATCH_BYTES)
    assert list(index.offsets.offsets) == [3, 6]


def test_I17_the_index_of_a_damaged_segment_ends_at_the_damage(disk, file):
    disk.overwrite(PATH, 20 * BATCH_BYTES, bytes(BATCH_BYTES))
    index = load(disk, file)
    assert index.fault is not None
    assert max(index.offsets.offsets) < 20


def test_I17_I21_what_was_aborted_behind_damage_is_not_taken_for_nothing(disk, file):
    file.pwrite([b"\xff"], 20 * BATCH_BYTES + MAGIC_AT)
    index = load(disk, file)
    with pytest.raises(CorruptBatch):
        index.find_aborted(file, 0, 40)
