"""The file log against a list of batches: the same answers for any order of operations.

Runs on the simulated disk with tiny segments and a file cache of three, so that rolls, evictions
and index rebuilds happen often.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.batches import NOW_MS, append, batch, flush, header, offsets_of, read
from tidemill.core.errors import DiskFull, KafkaError
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig, TimedOffset
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.recovery.clean_load import CheckpointedLog, try_load_clean
from tidemill.storage.recovery.log_recovery import recover
from tidemill.testing.sim.disk import SimDisk

PATH = "/data/t-0"
CONFIG = LogConfig(
    segment_bytes=700, index_interval_bytes=150, retention_ms=1_000, retention_bytes=2_500
)
PRODUCER_ID = 9


@dataclass(slots=True)
class Stored:
    base_offset: int
    times: list[int]
    epoch: int
    sequence: int
    data: bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.times)


class LogAgainstList(RuleBasedStateMachine):
    @initialize(base_offset=st.sampled_from([0, 1_000]))
    def create(self, base_offset: int) -> None:
        self.disk = SimDisk()
        self.disk.make_directories("/data")
        self.files = FileCache(self.disk, files_max=3, indexes_max=2)
        self.log = FilePartitionLog.create(
            self.disk, self.files, PATH, CONFIG, base_offset=base_offset
        )
        self.batches: list[Stored] = []
        self.start = self.end = base_offset
        self.epoch = 0
        self.sequence = 0

    def place(self, fraction: float) -> int:
        """An offset of the log, including its end."""
        return self.start + round(fraction * (self.end - self.start))

    fractions = st.floats(0, 1)

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 300)), min_size=1, max_size=4),
        clock=st.integers(0, 300),
        skip=st.sampled_from([0, 0, 0, 5]),
        new_epoch=st.booleans(),
    )
    def append_batches(
        self, sizes: list[tuple[int, int]], clock: int, skip: int, new_epoch: bool
    ) -> None:
        self.epoch += new_epoch
        self.end += skip
        written = []
        for count, value_bytes in sizes:
            times = [NOW_MS + (clock * (number + 7) * 31) % 500 for number in range(count)]
            data = batch(
                self.end,
                count,
                epoch=self.epoch,
                times=times,
                value=b"x" * value_bytes,
                producer=(PRODUCER_ID, 0, self.sequence),
            )
            written.append(Stored(self.end, times, self.epoch, self.sequence, data))
            self.sequence += count
            self.end = written[-1].next_offset
        append(self.log, *(stored.data for stored in written))
        self.batches += written

    @rule()
    def append_to_a_full_disk(self) -> None:
        self.disk.set_capacity(0)
        with pytest.raises(DiskFull):
            append(
                self.log, batch(self.end, epoch=self.epoch), batch(self.end + 1, epoch=self.epoch)
            )
        self.disk.set_capacity(None)

    @rule(at=fractions, end=fractions, max_bytes=st.sampled_from([1, 100, 500, 3_000]))
    def read_anywhere(self, at: float, end: float, max_bytes: int) -> None:
        offset, end_offset = self.place(at), self.place(end)
        found = read(self.log, offset, max_bytes=max_bytes, end_offset=end_offset)
        reach = [stored for stored in self.batches if stored.next_offset > offset]
        visible = []
        for stored in reach:
            if stored.next_offset > end_offset:
                break
            visible.append(stored.data)
        assert b"".join(visible).startswith(found)
        assert bool(found) == bool(visible)
        assert len(found) <= max_bytes or found == visible[0]

    @rule(time=st.integers(-10, 600), end=fractions)
    def search_by_time(self, time: int, end: float) -> None:
        end_offset = self.place(end)
        records = [
            TimedOffset(stored.base_offset + at, timestamp, stored.epoch)
            for stored in self.batches
            for at, timestamp in enumerate(stored.times)
            if self.start <= stored.base_offset + at < end_offset
        ]
        wanted = [found for found in records if found.timestamp_ms >= NOW_MS + time]
        found = self.log.offset_by_time(NOW_MS + time, end_offset=end_offset)
        assert found == (wanted[0] if wanted else None)

    @rule(at=fractions)
    def truncate(self, at: float) -> None:
        offset = self.place(at)
        self.log.truncate_to(offset)
        if offset >= self.end:
            return
        if offset <= self.start:
            self.start_over(offset)
            return
        cut = [stored for stored in self.batches if stored.next_offset > offset]
        self.batches = [stored for stored in self.batches if stored.next_offset <= offset]
        if self.batches:
            self.end = self.batches[-1].next_offset
        else:
            self.end = self.log.segments.oldest.base_offset
            assert self.end <= min([self.start, *(stored.base_offset for stored in cut)])
        self.start = min(self.start, self.end)
        if cut:
            self.sequence = cut[0].sequence

    @rule(offset=st.sampled_from([0, 77, 5_000]))
    def restart(self, offset: int) -> None:
        self.log.restart_at(offset)
        self.start_over(offset)

    def start_over(self, offset: int) -> None:
        self.batches, self.start, self.end, self.sequence = [], offset, offset, 0

    @rule(at=fractions)
    def advance_start(self, at: float) -> None:
        self.start = max(self.start, self.place(at))
        self.log.advance_start(self.start)

    @rule(mark=fractions, age=st.integers(0, 2_000))
    def apply_retention(self, mark: float, age: int) -> None:
        high_watermark = self.place(mark)
        old_start = self.start
        self.log.apply_retention(now_ms=NOW_MS + age, high_watermark=high_watermark)
        assert old_start <= self.log.log_start_offset <= max(old_start, high_watermark)
        self.start = self.log.log_start_offset
        left_bytes = sum(
            len(stored.data) for stored in self.batches if stored.next_offset > self.start
        )
        if age <= 500 and self.start > old_start:
            assert left_bytes >= CONFIG.retention_bytes
        self.batches = [
            stored
            for stored in self.batches
            if stored.next_offset > min(self.start, self.log.segments.oldest.base_offset)
        ]

    @rule()
    def flush(self) -> None:
        flush(self.log)

    @rule(is_clean=st.booleans())
    def reopen(self, is_clean: bool) -> None:
        point = self.log.progress.take_checkpoint()
        if point is not None:
            point.sync()
            self.log.flushed(point)
        remembered = CheckpointedLog(
            recovery_point=self.log.flushed_offset,
            log_start_offset=self.log.log_start_offset,
            size_bytes=self.log.size_bytes,
            producers=len(self.log.producers),
        )
        self.disk = self.disk.restart()
        self.files = FileCache(self.disk, files_max=3, indexes_max=2)
        interval = CONFIG.index_interval_bytes
        place = (self.disk, self.files, PATH)
        state = None
        if is_clean:
            state = try_load_clean(*place, remembered, index_interval_bytes=interval)
        else:
            state, _ = recover(*place, remembered, index_interval_bytes=interval, now_ms=NOW_MS)
        assert state is not None
        self.log = FilePartitionLog(*place, CONFIG, state)

    @invariant()
    def offsets_and_size_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.log_start_offset <= log.flushed_offset <= log.log_end_offset
        assert log.size_bytes == sum(len(stored.data) for stored in self.batches)

    @invariant()
    def epochs_agree_with_the_batches(self) -> None:
        for stored in self.batches:
            if stored.base_offset >= self.start:
                assert self.log.epochs.epoch_at(stored.base_offset) == stored.epoch

    @invariant()
    def the_last_batches_are_known_as_repetitions(self) -> None:
        for stored in self.batches[-5:]:
            again = header(0, len(stored.times), producer=(PRODUCER_ID, 0, stored.sequence))
            original = self.log.producers.check(again)
            assert original is not None
            assert original.base_offset == stored.base_offset

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        offset, found = self.start, list[int]()
        while offset < self.end:
            part = offsets_of(read(self.log, offset))
            if not part:
                break
            found += part
            offset = part[-1] + 1
        expected = [
            stored.base_offset + at
            for stored in self.batches
            if stored.next_offset > self.start
            for at in range(len(stored.times))
        ]
        assert found == expected
        with pytest.raises(KafkaError):
            read(self.log, self.end + 1)


LogAgainstList.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_I2_the_log_gives_back_what_a_list_would = pytest.mark.slow(LogAgainstList.TestCase)
