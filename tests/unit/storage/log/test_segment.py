from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.batches import batch, data_of, offsets_of
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError, StorageFault
from tidemill.storage.files.disk import Disk, OsDisk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogSlice
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segment_head import SegmentHead
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import read_header

INTERVAL_BYTES = 200
LARGE = b"x" * 10_000


def new_segment(disk: Disk, directory: str, *, base_offset: int = 0) -> Segment:
    disk.make_directories(directory)
    return Segment.create(
        disk,
        FileCache(disk),
        directory,
        base_offset=base_offset,
        index_interval_bytes=INTERVAL_BYTES,
    )


def reopened(disk: Disk, segment: Segment, *, is_closed: bool = True) -> Segment:
    """The same segment as the next process sees it."""
    return Segment(
        disk,
        FileCache(disk),
        segment.directory,
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        next_offset=segment.next_offset,
        index_interval_bytes=INTERVAL_BYTES,
        is_closed=is_closed,
    )


def append(segment: Segment, *batches: bytes) -> None:
    segment.append(batches, [read_header(data) for data in batches])


def filled(segment: Segment, count: int, *, value: bytes = b"v") -> list[bytes]:
    written = [batch(segment.next_offset + number, value=value) for number in range(count)]
    for data in written:
        append(segment, data)
    return written


def read(segment: Segment, offset: int, *, max_bytes: int = 1 << 20) -> LogSlice:
    return segment.read(
        offset, max_bytes=max_bytes, end_offset=segment.next_offset, at_least_one=True
    )


@pytest.fixture
def segment(disk: SimDisk) -> Segment:
    return new_segment(disk, "/log")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the system calls on files."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(os, name)

        def counting(*args: object) -> object:
            counted[name] += 1
            return real(*args)

        monkeypatch.setattr(os, name, counting)

    for name in ("pread", "pwrite", "pwritev", "fstat", "open", "ftruncate"):
        count(name)
    return counted


# --- costs ----------------------------------------------------------------------------------------


def test_F29_an_append_is_one_system_call(tmp_path, calls):
    segment = new_segment(OsDisk(), str(tmp_path))
    append(segment, batch(0))
    calls.clear()
    append(segment, batch(1))
    assert calls == {"pwrite": 1}
    calls.clear()
    append(segment, batch(2), batch(3), batch(4))
    assert calls == {"pwritev": 1}


def test_a_tail_read_is_one_system_call(tmp_path, calls):
    segment = new_segment(OsDisk(), str(tmp_path))
    filled(segment, 200)
    calls.clear()
    assert offsets_of(data_of(read(segment, 190))) == list(range(190, 200))
    assert calls == {"pread": 1}


def test_a_read_anywhere_is_a_few_system_calls(tmp_path, calls):
    segment = new_segment(OsDisk(), str(tmp_path))
    filled(segment, 2_000)
    for offset, max_bytes in ((5, 1_000), (1_000, 1_000), (1_000, 100_000)):
        calls.clear()
        assert read(segment, offset, max_bytes=max_bytes).size_bytes > 0
        assert calls.total() <= 4, calls


def test_nothing_is_opened_before_it_is_needed(tmp_path, calls):
    segment = new_segment(OsDisk(), str(tmp_path))
    filled(segment, 10)
    calls.clear()
    reopened(OsDisk(), segment)
    assert calls.total() == 0


# --- the three ways of reading --------------------------------------------------------------------


def test_what_was_just_written_is_read_at_once(segment):
    written = filled(segment, 50)
    assert read(segment, 40).chunks == (b"".join(written[40:]),)


def test_resident_bytes_of_a_closed_segment_come_as_a_view(tmp_path):
    disk = OsDisk()
    segment = new_segment(disk, str(tmp_path))
    written = filled(segment, 20, value=LARGE)
    segment.close()
    read(segment, 0)
    found = read(segment, 2, max_bytes=150_000)
    assert isinstance(found.chunks[0], memoryview)
    assert data_of(found) == b"".join(written[2:16])


def test_cold_bytes_are_read_in_a_thread(tmp_path):
    disk = OsDisk()
    segment = new_segment(disk, str(tmp_path))
    written = filled(segment, 20, value=LARGE)
    cold = reopened(OsDisk(), segment)
    found = read(cold, 2, max_bytes=150_000)
    assert found.chunks == ()
    assert found.load is not None
    assert found.size_bytes <= 150_000
    assert b"".join(found.load()) == b"".join(written[2:16])


def test_a_cold_read_of_a_growing_segment_is_not_disturbed_by_appends(tmp_path):
    disk = OsDisk()
    segment = new_segment(disk, str(tmp_path))
    written = filled(segment, 20, value=LARGE)
    cold = reopened(OsDisk(), segment, is_closed=False)
    found = read(cold, 15)
    assert found.load is not None
    filled(cold, 3, value=LARGE)
    assert b"".join(found.load()) == b"".join(written[15:])


def test_I17_a_cold_read_verifies_checksums(disk, segment):
    filled(segment, 10)
    cold = reopened(disk, segment)
    disk.flip_bit(segment.path, segment.size_bytes - 3)
    found = read(cold, 8)
    assert found.load is not None
    with pytest.raises(KafkaError) as refusal:
        found.load()
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_I17_damage_hides_only_what_follows_it(disk, segment):
    written = filled(segment, 30)
    disk.overwrite(segment.path, 20 * len(written[0]), bytes(100))
    damaged = reopened(disk, segment)
    assert data_of(read(damaged, 3, max_bytes=500)).startswith(written[3])
    with pytest.raises(KafkaError):
        data_of(read(damaged, 21))
    with pytest.raises(KafkaError):
        damaged.max_timestamp()
    assert damaged.newest_ms(now_ms=77) == 77


def test_a_file_shorter_than_it_should_be_is_a_fault(disk, segment):
    filled(segment, 5)
    disk.open(segment.path).truncate(segment.size_bytes - 1)
    with pytest.raises(StorageFault):
        read(segment, 0)


@pytest.mark.parametrize("max_bytes", [1, 100, 5_000, 40_000, 1 << 20])
def test_all_ways_find_the_same_batches(tmp_path, max_bytes):
    segment = new_segment(OsDisk(), str(tmp_path))
    for size in (10, 3_000, 40_000, 70, 70, 9_000, 30, 33_000, 5, 5, 5):
        filled(segment, 1, value=b"x" * size)
    closed, cold = reopened(OsDisk(), segment), reopened(OsDisk(), segment)
    closed.load_index()
    for _ in range(2):
        for offset in range(11):
            warm = data_of(read(segment, offset, max_bytes=max_bytes))
            assert data_of(read(closed, offset, max_bytes=max_bytes)) == warm
            cold.drop_index()
            assert data_of(read(cold, offset, max_bytes=max_bytes)) == warm


# --- failed writes --------------------------------------------------------------------------------


def test_R12_a_full_disk_leaves_the_segment_as_it_was(disk, segment):
    written = filled(segment, 3)
    disk.set_capacity(segment.size_bytes + len(written[0]) + 5)
    with pytest.raises(DiskFull):
        append(segment, batch(3), batch(4))
    assert disk.size(segment.path) == segment.size_bytes == len(b"".join(written))
    assert segment.next_offset == 3
    disk.set_capacity(None)
    append(segment, batch(3, value=b"later"))
    assert offsets_of(data_of(read(segment, 0))) == [0, 1, 2, 3]


def test_a_failed_write_leaves_no_whole_batch_after_a_shorter_one(disk, segment):
    first, second, third = batch(0), batch(1), batch(2)
    disk.set_capacity(len(first) + len(second) + 1)
    with pytest.raises(DiskFull):
        append(segment, first, second, third)
    disk.set_capacity(None)
    append(segment, first)
    assert disk.read_file(segment.path) == first


def test_a_partial_write_that_could_not_be_cut_off_is_cut_off_before_the_next_write(disk, segment):
    first, second = batch(0), batch(1)
    disk.set_capacity(len(first) + len(second) - 1)
    disk.fail("truncate")
    with pytest.raises(StorageFault):
        append(segment, first, second)
    disk.set_capacity(None)
    append(segment, batch(0, value=b""))
    assert disk.size(segment.path) == segment.size_bytes == len(batch(0, value=b""))


def test_a_full_disk_after_a_view_is_repaired_too(disk, segment):
    written = filled(segment, 6, value=LARGE)
    assert isinstance(read(segment, 0).chunks[0], memoryview)
    disk.set_capacity(segment.size_bytes + 10)
    with pytest.raises(DiskFull):
        append(segment, batch(6))
    assert disk.read_file(segment.path) == b"".join(written)


# --- cutting --------------------------------------------------------------------------------------


def cut(disk: Disk, segment: Segment, offset: int) -> None:
    head = SegmentHead(disk, segment, offset)
    head.copy_if_viewed()
    assert head.begin()
    head.cut()
    head.end()


def test_a_view_that_is_given_out_before_a_cut_begins_makes_it_copy(disk, segment):
    written = filled(segment, 8, value=LARGE)
    head = SegmentHead(disk, segment, 5)
    head.copy_if_viewed()
    view = read(segment, 0).chunks[0]
    assert not head.begin()
    head.copy_if_viewed()
    assert head.begin()
    head.cut()
    head.end()
    assert bytes(view) == b"".join(written)
    assert disk.read_file(segment.path) == b"".join(written[:5])


def test_a_cut_that_failed_is_taken_up_again(disk, segment):
    written = filled(segment, 8, value=LARGE)
    read(segment, 0)
    head = SegmentHead(disk, segment, 5)
    head.copy_if_viewed()
    assert head.begin()
    disk.fail("sync_directory")
    with pytest.raises(StorageFault):
        head.cut()
    head.cut()
    head.end()
    assert disk.read_file(segment.path) == b"".join(written[:5])


@pytest.mark.parametrize("with_view", [False, True])
def test_a_cut_segment_keeps_its_head_and_continues_from_there(disk, segment, with_view):
    written = filled(segment, 8, value=LARGE)
    view = data = b""
    if with_view:
        view, data = read(segment, 0).chunks[0], b"".join(written)
    cut(disk, segment, 5)
    assert bytes(view) == data
    assert disk.read_file(segment.path) == b"".join(written[:5])
    assert (segment.next_offset, segment.size_bytes) == (5, len(b"".join(written[:5])))
    more = filled(segment, 2)
    assert data_of(read(segment, 4)) == written[4] + b"".join(more)


def test_a_segment_that_gave_a_view_is_not_cut_in_place(tmp_path):
    disk = OsDisk()
    segment = new_segment(disk, str(tmp_path))
    written = filled(segment, 20, value=LARGE)
    read(segment, 0)
    view = read(segment, 0, max_bytes=150_000).chunks[0]
    assert isinstance(view, memoryview)
    cut(disk, segment, 1)
    assert bytes(view) == b"".join(written)[: len(view)]
    assert segment.size_bytes == len(written[0])
    assert os.listdir(tmp_path) == [os.path.basename(segment.path)]


def test_a_renamed_segment_leaves_no_index_behind(disk, segment):
    filled(segment, 10)
    for path, position, block in segment.take_index_blocks():
        disk.open(path, create=True).pwrite([block], position)
    assert segment.rename(".deleted") == segment.path + ".deleted"
    assert disk.list_names("/log") == [f"{0:020d}.log.deleted"]


def test_a_dirty_file_stays_open_after_the_cache_drops_it(disk):
    disk.make_directories("/log")
    files = FileCache(disk, files_max=1)
    segment = Segment.create(disk, files, "/log", base_offset=0, index_interval_bytes=100)
    append(segment, batch(0))
    dirty = segment.dirty_file
    disk.open("/log/other", create=True)
    files.get("/log/other")
    append(segment, batch(1))
    assert segment.dirty_file is dirty


def test_first_and_greatest_timestamps_are_known(disk, segment):
    assert (segment.first_timestamp(), segment.max_timestamp()) == (-1, -1)
    append(segment, batch(0, times=[50]), batch(1, times=[90]), batch(2, times=[70]))
    assert (segment.first_timestamp(), segment.max_timestamp()) == (50, 90)
    assert reopened(disk, segment).max_timestamp() == 90


def test_headers_are_replayed_from_the_batch_that_reaches_the_offset(segment):
    append(segment, batch(0, 3), batch(3, 3), batch(6, 3))
    assert [found.base_offset for found, _ in segment.replay_from(4)] == [3, 6]
    assert list(segment.replay_from(9)) == []
