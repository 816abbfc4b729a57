"""A damaged segment is written anew from its valid batches and those of another replica."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.batches import append, batch, flush
from tidemill.core.errors import DiskFull, StorageFault
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.recovery import checked_scan
from tidemill.storage.rewriting.new_segment import swap_steps
from tidemill.storage.rewriting.segment_mend import (
    EpochAt,
    FollowingHeader,
    SegmentMend,
    WrongBatches,
    first_header,
)
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import iter_headers

SIZE = len(batch(0))
PER_SEGMENT = 5


class Place:
    """Two replicas of a log with three closed segments, and the middle one of the first."""

    def __init__(self, *, records: int = 1, epoch: int = 0) -> None:
        """With so many records in each batch, all of them of this leader epoch."""
        self.disk = SimDisk()
        self._size = len(batch(0, records))
        self._config = LogConfig(segment_bytes=PER_SEGMENT * self._size, index_interval_bytes=SIZE)
        self._records = records
        self._epoch = epoch
        self.log, self.other = (self._log(path) for path in ("/own-0", "/other-0"))
        self.segment = list(self.log.segments)[1]
        self.before = self.bytes_on_disk()

    def _log(self, path: str) -> FilePartitionLog:
        log = FilePartitionLog.create(self.disk, FileCache(self.disk), path, self._config)
        for number in range(3 * PER_SEGMENT + 2):  # no two batches are alike
            value = bytes([ord("a") + number])
            data = batch(log.log_end_offset, self._records, value=value, epoch=self._epoch)
            append(log, data)
        flush(log)
        return log

    def bytes_on_disk(self) -> bytes:
        return self.disk.read_file(self.segment.path)

    def flip(self, place: int, byte: int = 65) -> None:
        """Damage one batch of the segment."""
        self.disk.flip_bit(self.segment.path, place * self._size + byte)

    def mend(
        self,
        *,
        epoch_at: EpochAt | None = None,
        following: FollowingHeader | None = None,
        **options: int,
    ) -> SegmentMend:
        log = self.log
        later = [one for one in log.segments if one.base_offset >= self.segment.next_offset]
        return SegmentMend(
            self.disk,
            self.segment,
            index_interval_bytes=SIZE,
            following=following or partial(first_header, later),
            epoch_at=epoch_at or log.epochs.epoch_at,
            **options,
        )

    def part_at(self, offset: int) -> None:
        """The other log goes another way from here on, in another epoch."""
        self.other.truncate_to(offset)
        for _ in range(10):
            append(self.other, batch(self.other.log_end_offset, epoch=1))

    def read(self, offset: int, source: FilePartitionLog | None = None) -> bytes:
        """What another replica answers: two batches at a time."""
        source = source or self.other
        found = source.read(offset, max_bytes=2 * self._size, end_offset=source.log_end_offset)
        return b"".join(map(bytes, found.load() if found.load is not None else found.chunks))

    def run(
        self,
        mend: SegmentMend,
        read: Callable[[int], bytes] | None = None,
        *,
        may_have_gaps: bool = False,
    ) -> None:
        while not mend.is_done:
            mend.run_slice()
            while mend.hole is not None:
                mend.take((read or self.read)(mend.next_offset), may_have_gaps=may_have_gaps)

    def commit(self, mend: SegmentMend) -> Segment:
        mend.new.pin_sources()
        mend.new.sync()
        for step in swap_steps(self.disk, self.log, mend.new):
            step()
        return list(self.log.segments)[1]


@pytest.mark.parametrize("byte", [0, 7, 8, 12, 16, 17, 23, 40, 61, SIZE - 1])
@pytest.mark.parametrize("place", range(PER_SEGMENT))
def test_any_damaged_byte_of_any_batch_is_replaced(place, byte):
    here = Place()
    here.flip(place, byte)
    mend = here.mend()
    here.run(mend)
    here.commit(mend)
    assert here.bytes_on_disk() == here.before


@pytest.mark.parametrize("epoch", [0, 1])
def test_I10_a_damaged_epoch_is_replaced_of_the_batch_in_which_the_log_starts(epoch):
    here = Place(records=2, epoch=epoch)
    start = here.segment.base_offset + 1
    here.flip(0, byte=15)  # the lowest bit of the epoch, which is under no checksum

    def epoch_at(offset: int) -> int | None:
        return here.log.epochs.epoch_at(offset) if offset >= start else None

    assert epoch_at(start) == epoch
    mend = here.mend(epoch_at=epoch_at)
    here.run(mend)
    here.commit(mend)
    assert here.bytes_on_disk() == here.before


def test_several_holes_of_a_segment_are_filled():
    here = Place()
    for at in (0, 2, 4):
        here.flip(at)
    mend = here.mend()
    here.run(mend)
    assert [one.range.start_offset for one in mend.holes] == [5, 7, 9]
    here.commit(mend)
    assert here.bytes_on_disk() == here.before


def test_a_segment_that_ends_too_early_is_completed():
    here = Place()
    here.segment.size_bytes -= 2 * SIZE
    mend = here.mend()
    here.run(mend)
    assert mend.holes[0].size_bytes == 0
    assert mend.new.size_bytes == len(here.before)


def test_an_intact_segment_has_no_holes():
    here = Place()
    mend = here.mend()
    here.run(mend)
    assert mend.holes == []


def test_readers_find_the_mended_batches():
    here = Place()
    here.flip(2)
    mend = here.mend()
    here.run(mend)
    here.commit(mend)
    headers = [header for _, header in iter_headers(here.read(7, here.log))]
    assert headers[0].base_offset == 7


def test_a_replica_whose_log_went_another_way_mends_nothing():
    here = Place()
    here.part_at(7)
    here.flip(2)
    with pytest.raises(WrongBatches):
        here.run(here.mend())
    assert here.bytes_on_disk() != here.before


def test_I10_the_batch_that_follows_shows_another_log_where_epochs_are_not_known():
    here = Place()
    here.part_at(7)
    here.flip(2)
    with pytest.raises(WrongBatches, match="not the one that follows"):
        here.run(here.mend(epoch_at=lambda _offset: None))


def test_I10_the_epoch_shows_another_log_where_no_batch_follows():
    here = Place()
    here.part_at(9)
    here.flip(PER_SEGMENT - 1)
    with pytest.raises(WrongBatches, match="not of leader epoch 1"):
        here.run(here.mend(following=lambda: None))


def test_a_replica_that_lacks_the_same_offsets_mends_nothing_unless_it_is_believed():
    def with_a_gap(offset: int) -> bytes:
        return here.read(8 if offset == 7 else offset)

    here = Place()
    here.flip(2)
    with pytest.raises(WrongBatches, match="missing"):
        here.run(here.mend(), with_a_gap)
    mend = here.mend()
    here.run(mend, with_a_gap, may_have_gaps=True)
    here.segment = here.commit(mend)
    again = here.mend()
    here.run(again)
    assert again.holes == []  # a batch without records is in the gap


def test_damaged_bytes_of_another_replica_are_refused():
    def damaged(offset: int) -> bytes:
        data = bytearray(here.read(offset))
        data[-1] ^= 1
        return bytes(data)

    here = Place()
    here.flip(2)
    with pytest.raises(WrongBatches, match="checksum"):
        here.run(here.mend(), damaged)


def test_the_rest_of_the_segment_is_taken_if_what_follows_the_damage_may_be_fake():
    here = Place()
    here.flip(1)
    mend = here.mend(takes_rest=True)
    here.run(mend)
    assert mend.holes[0].range.end_offset == here.segment.next_offset
    here.commit(mend)
    assert here.bytes_on_disk() == here.before


def test_an_attempt_that_ends_leaves_no_files():
    here = Place()
    mend = here.mend()
    mend.run_slice()
    mend.new.discard()
    assert not [name for name in here.disk.list_names("/own-0") if name.endswith(".cleaned")]


@pytest.mark.parametrize("unreadable", range(1, 4))
def test_batches_before_a_sector_that_cannot_be_read_are_kept(unreadable, monkeypatch):
    """The scan reads in windows; here the second one fails, or what is copied after the scan."""
    monkeypatch.setattr(checked_scan, "_WINDOW_BYTES", 2 * SIZE)
    here = Place()
    mend = here.mend()
    reads = 0

    def fail_later(disk: SimDisk, path: str) -> None:
        nonlocal reads
        reads += path == here.segment.path
        if reads > unreadable:
            raise StorageFault("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(
            SimDisk,
            "maybe_fail",
            lambda disk, call, path: fail_later(disk, path) if call == "pread" else None,
        )
        mend.run_slice()
    while mend.hole is not None:
        mend.take(here.read(mend.next_offset), may_have_gaps=False)
    here.run(mend)
    here.commit(mend)
    assert here.bytes_on_disk() == here.before


def test_a_disk_that_is_full_while_valid_batches_are_copied_is_no_damage():
    here = Place()
    mend = here.mend()
    here.disk.set_capacity(0)
    with pytest.raises(DiskFull):
        mend.run_slice()
    assert mend.holes == []
    assert not mend.is_done


@pytest.mark.parametrize("start_offset", [6, 7])
def test_what_is_below_the_log_start_need_not_come_back(start_offset):
    """Another replica answers from its log start on, here inside the damage."""
    here = Place()
    for place in (0, 1, 2):
        here.flip(place)
    here.other.advance_start(start_offset)
    mend = here.mend(start_offset=start_offset)
    here.run(mend, lambda offset: here.read(max(offset, start_offset)))
    here.commit(mend)
    kept = (start_offset - here.segment.base_offset) * SIZE
    assert here.bytes_on_disk().endswith(here.before[kept:])


def test_I11_what_is_put_in_place_of_lost_batches_keeps_where_leader_epochs_begin():
    here = Place()
    for at in range(PER_SEGMENT):
        here.flip(at)
    mend = here.mend(epoch_at=lambda offset: 0 if offset < 7 else 1)
    while not mend.is_done:
        mend.run_slice()
        if mend.hole is not None:
            mend.fill_with_nothing(mend.hole.range.end_offset)
    here.commit(mend)
    headers = [header for _, header in iter_headers(memoryview(here.bytes_on_disk()))]
    found = [(one.base_offset, one.next_offset, one.partition_leader_epoch) for one in headers]
    assert found == [(5, 7, 0), (7, 10, 1)]
