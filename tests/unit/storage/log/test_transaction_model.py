"""A log with transactions against a list of all its batches: the same answers in any order.

The list knows everything and forgets nothing. The log has tiny segments, a small cache, snapshots
and indexes that get lost, cuts, retention and compaction. Its last stable offset and the aborted
transactions of any range must be those of the list (T34, I20, I21, I23).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.batches import NOW_MS, drain, flush
from tests.support.compacting import clean
from tests.support.transactions import append_one, end, records_of
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.recovery.clean_load import CheckpointedLog, try_load_clean
from tidemill.storage.recovery.log_recovery import recover
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import iter_headers
from tidemill.wire.records import iter_records

PATH = "/data/t-0"
CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=150,
    retention_bytes=3_000,
    retention_ms=-1,
    compacts=True,
    min_cleanable_dirty_ratio=0.0,
)
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
PRODUCERS = st.integers(1, 3)
WRITERS = st.sampled_from([-1, 1, 2, 3])
KEYS = st.sampled_from([b"a", b"b", b"c"])


@dataclass(slots=True)
class Batch:
    """One batch as the list remembers it."""

    offset: int
    producer_id: int
    is_transactional: bool
    key: bytes | None = None
    value: bytes = b""
    commits: bool | None = None
    """Of a marker."""


class LogWithTransactions(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.disk = SimDisk()
        self.disk.make_directories("/data")
        self.files = FileCache(self.disk, files_max=3, indexes_max=2)
        self.log = FilePartitionLog.create(self.disk, self.files, PATH, CONFIG)
        self.batches: list[Batch] = []
        self.high_watermark = 0
        self.last_stable = 0

    # --- the list's own answers -------------------------------------------------------------------

    def transactions(self) -> list[tuple[int, int, int | None, bool]]:
        """(producer, first offset, offset of the marker if it ended, whether it was aborted)."""
        opened: dict[int, int] = {}
        found: list[tuple[int, int, int | None, bool]] = []
        for batch in self.batches:
            if batch.commits is not None:
                first = opened.pop(batch.producer_id, None)
                if first is not None:
                    found.append((batch.producer_id, first, batch.offset, not batch.commits))
            elif batch.is_transactional:
                opened.setdefault(batch.producer_id, batch.offset)
        return found + [(producer, first, None, False) for producer, first in opened.items()]

    def stable(self) -> int:
        undecided = [
            first
            for _, first, marker, _ in self.transactions()
            if marker is None or marker >= self.high_watermark
        ]
        return min([self.high_watermark, *undecided])

    # --- writing ---------------------------------------------------------------------------------

    def put(self, batch: Batch) -> None:
        data = records_of(
            batch.producer_id,
            offset=batch.offset,
            sequence=-1,
            keys=[batch.key],
            value=batch.value,
            transactional=batch.is_transactional,
        )
        append_one(self.log, data)
        self.batches.append(batch)

    @rule(writes=st.lists(st.tuples(WRITERS, KEYS, st.integers(0, 200)), min_size=1, max_size=8))
    def write(self, writes: list[tuple[int, bytes, int]]) -> None:
        """Batches of several transactions, and of none."""
        for producer, key, size in writes:
            offset = self.log.log_end_offset
            value = b"%d" % offset + b"x" * size
            self.put(Batch(offset, producer, producer >= 0, key, value))

    @rule(ends=st.lists(st.tuples(PRODUCERS, st.booleans()), min_size=1, max_size=3))
    def end_transactions(self, ends: list[tuple[int, bool]]) -> None:
        for producer, commit in ends:
            header = end(self.log, producer, commit=commit)
            self.batches.append(Batch(header.base_offset, producer, True, commits=commit))

    @rule()
    def end_all(self) -> None:
        """As after a failure: everything that is open is aborted, and the replicas catch up."""
        opened = [producer for producer, _, marker, _ in self.transactions() if marker is None]
        if opened:
            self.end_transactions([(producer, False) for producer in opened])
        self.high_watermark = self.log.log_end_offset

    @rule(fraction=st.sampled_from([0.2, 0.7, 1.0]))
    def advance_watermark(self, fraction: float) -> None:
        span = self.log.log_end_offset - self.high_watermark
        self.high_watermark += round(fraction * span)

    @rule()
    def flush(self) -> None:
        flush(self.log)

    # --- what happens to logs --------------------------------------------------------------------

    @rule(fraction=st.floats(0, 1))
    def truncate(self, fraction: float) -> None:
        """Like a follower, never below the watermark."""
        span = self.log.log_end_offset - self.high_watermark
        offset = self.high_watermark + round(fraction * span)
        if offset <= self.log.log_start_offset:
            return
        self.log.truncate_to(offset)
        self.batches = [batch for batch in self.batches if batch.offset < offset]
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        self.last_stable = min(self.last_stable, self.high_watermark)

    @rule(
        writes=st.lists(st.tuples(WRITERS, KEYS, st.integers(0, 60)), min_size=1, max_size=4),
        ends=st.lists(st.tuples(PRODUCERS, st.booleans()), min_size=1, max_size=3),
        flushes=st.booleans(),
        fraction=st.floats(0, 1),
    )
    def diverge(
        self,
        writes: list[tuple[int, bytes, int]],
        ends: list[tuple[int, bool]],
        flushes: bool,
        fraction: float,
    ) -> None:
        """What another leader does not have is written and cut again."""
        self.write(writes)
        self.end_transactions(ends)
        if flushes:
            flush(self.log)
        self.truncate(fraction)

    @rule()
    def apply_retention(self) -> None:
        flush(self.log)
        self.log.apply_retention(now_ms=NOW_MS, high_watermark=self.stable())
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset)

    @rule()
    def compact(self) -> None:
        flush(self.log)
        clean(self.disk, self.log, end_offset=self.stable())

    @rule(is_clean=st.booleans(), loses_snapshots=st.booleans(), loses_indexes=st.booleans())
    def reopen(self, is_clean: bool, loses_snapshots: bool, loses_indexes: bool) -> None:
        if is_clean:
            self.take_checkpoint()
        else:
            flush(self.log)
        remembered = CheckpointedLog(
            recovery_point=self.log.progress.synced_offset,
            log_start_offset=self.log.log_start_offset,
            size_bytes=self.log.size_bytes,
            producers=self.log.producers.fact_count,
        )
        self.disk = self.disk.restart()
        self.lose((".snapshot",) if loses_snapshots else ())
        self.lose(INDEX_SUFFIXES[2:] if loses_indexes and is_clean else ())
        self.lose(INDEX_SUFFIXES if loses_indexes and not is_clean else ())
        self.files = FileCache(self.disk, files_max=3, indexes_max=2)
        interval = CONFIG.index_interval_bytes
        place = (self.disk, self.files, PATH)
        state = None
        if is_clean:
            state = try_load_clean(*place, remembered, index_interval_bytes=interval)
        if state is None:
            state, _ = recover(*place, remembered, index_interval_bytes=interval, now_ms=NOW_MS)
        self.log = FilePartitionLog(*place, CONFIG, state)

    def take_checkpoint(self) -> None:
        point = self.log.progress.take_checkpoint()
        if point is not None:
            point.sync()
            self.log.flushed(point)

    def lose(self, suffixes: tuple[str, ...]) -> None:
        for name in self.disk.list_names(PATH):
            if suffixes and name.endswith(suffixes):
                self.disk.unlink(f"{PATH}/{name}")

    # --- the comparison --------------------------------------------------------------------------

    @invariant()
    def the_stable_offset_is_that_of_the_list_and_never_goes_back(self) -> None:
        stable = self.log.producers.stable_offset(self.high_watermark)
        assert stable == self.stable()
        assert stable >= self.last_stable
        self.last_stable = stable

    @rule(at=st.floats(0, 1), until=st.floats(0, 1))
    def look_for_aborted(self, at: float, until: float) -> None:
        low, high = self.log.log_start_offset, max(self.last_stable, self.log.log_start_offset)
        start, stop = sorted((low + round(at * (high - low)), low + round(until * (high - low))))
        self.compare_aborted(start, stop)

    @invariant()
    def everything_aborted_is_known(self) -> None:
        self.compare_aborted(self.log.log_start_offset, self.log.log_end_offset)

    def compare_aborted(self, start: int, stop: int) -> None:
        wanted = [
            (producer, first, marker)
            for producer, first, marker, is_aborted in self.transactions()
            if is_aborted and marker is not None and marker >= start and first < stop
        ]
        ready = self.log.try_find_aborted(start, stop)
        found = self.log.find_aborted(start, stop)
        assert ready is None or ready == found
        assert [(one.producer_id, one.first_offset, one.last_offset) for one in found] == wanted

    @invariant()
    def a_committed_reader_gets_the_newest_committed_values(self) -> None:
        start, stop = self.log.log_start_offset, self.last_stable
        if start >= stop:
            return
        aborted = [
            (producer, first, marker)
            for producer, first, marker, is_aborted in self.transactions()
            if is_aborted and marker is not None
        ]
        wanted = {
            batch.key: batch.value
            for batch in self.batches
            if batch.key is not None
            and start <= batch.offset < stop
            and not any(
                batch.producer_id == producer and first <= batch.offset < marker
                for producer, first, marker in aborted
            )
        }
        assert self.read_committed(start, stop) == wanted

    def read_committed(self, start: int, stop: int) -> dict[bytes, bytes]:
        """What a consumer does: skip what the list of aborted transactions names."""
        aborted = sorted(self.log.find_aborted(start, stop), key=lambda one: one.first_offset)
        skipped: set[int] = set()
        found: dict[bytes, bytes] = {}
        data = drain(self.log, start)
        for position, header in iter_headers(data):
            if header.base_offset >= stop:
                break
            while aborted and aborted[0].first_offset <= header.last_offset:
                skipped.add(aborted.pop(0).producer_id)
            if header.is_control:
                skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                for record in iter_records(data[position : position + header.size_bytes]):
                    assert record.key is not None
                    assert record.value is not None
                    found[record.key] = record.value
        return found


LogWithTransactions.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
test_I23_the_log_knows_its_transactions_as_a_list_would = pytest.mark.slow(
    LogWithTransactions.TestCase
)
