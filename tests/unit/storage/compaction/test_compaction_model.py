"""Random operations on a compacted log, compared with a dictionary (I35)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.batches import NOW_MS, flush
from tests.support.compacting import CONFIG, PATH, clean, make_log, put, records, seal
from tidemill.storage.compaction.cleaning import Compaction
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.recovery.clean_load import CheckpointedLog
from tidemill.storage.recovery.log_recovery import recover
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire import compression

KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"d" * 40])
VALUES = st.one_of(st.none(), st.binary(max_size=60))
CODECS = st.sampled_from([compression.NONE, compression.NONE, compression.LZ4])

DELETE_RETENTION_MS = CONFIG.delete_retention_ms


class CompactedLog(RuleBasedStateMachine):
    """Puts, tombstones, rolls, cleanings, process crashes; the newest value must stay."""

    @initialize()
    def start(self) -> None:
        self.disk = SimDisk()
        self.log = make_log(self.disk)
        self.now_ms = NOW_MS
        self.written: list[tuple[bytes, bytes | None, int]] = []
        """Every record by offset: key, value, timestamp."""
        self.tombstone_cleaned_at: dict[int, int] = {}
        self.sequence = 0
        self.committed = 0
        """Nothing below was ever taken back, or a cleaning could not have relied on it."""

    @rule(
        pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5),
        codec=CODECS,
        is_idempotent=st.booleans(),
    )
    def put(self, pairs: list[tuple[bytes, bytes | None]], codec: int, is_idempotent: bool) -> None:
        producer = (5, 0, self.sequence) if is_idempotent else None
        self.sequence += len(pairs) if is_idempotent else 0
        base = self.log.log_end_offset
        put(self.log, *pairs, codec=codec, producer=producer)
        for at, (key, value) in enumerate(pairs):
            self.written.append((key, value, NOW_MS + base + at))

    @rule()
    def roll(self) -> None:
        base = self.log.log_end_offset
        seal(self.log)
        for offset in range(base, self.log.log_end_offset):
            self.written.append((b"filler", b"", NOW_MS + offset))

    @rule()
    def flush(self) -> None:
        flush(self.log)

    @rule(
        buffer_bytes=st.sampled_from([64 * 24, 1 << 16]),
        share=st.sampled_from([1.0, 1.0, 0.6]),
        is_rolled=st.booleans(),
    )
    def clean(self, buffer_bytes: int, share: float, is_rolled: bool) -> None:
        if is_rolled:
            self.roll()
        end = int(self.log.flushed_offset * share)
        self.committed = max(self.committed, end)
        self.note_tombstones()
        clean(self.disk, self.log, now_ms=self.now_ms, buffer_bytes=buffer_bytes, end_offset=end)

    @rule(steps=st.integers(1, 30))
    def clean_and_give_up(self, steps: int) -> None:
        segments = self.log.compactable_segments(self.log.flushed_offset)
        if not segments or segments[-1].next_offset <= self.log.clean_point.offset:
            return
        self.note_tombstones()
        self.committed = self.log.flushed_offset
        job = Compaction(
            self.disk, self.log, segments, secret=3, dedupe_buffer_bytes=9_999, now_ms=self.now_ms
        )
        running = job.steps()
        for _, step in zip(range(steps), running, strict=False):
            step()
        running.close()
        self.log.settle_swap()

    def note_tombstones(self) -> None:
        """The earliest moment at which a cleaning may have set a horizon."""
        for offset, (_, value, _) in enumerate(self.written):
            if value is None:
                self.tombstone_cleaned_at.setdefault(offset, self.now_ms)

    @rule(ms=st.integers(1, 2 * DELETE_RETENTION_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def kill(self) -> None:
        """The process ends and recovery scans everything."""
        end = self.log.log_end_offset
        self.disk = self.disk.restart()
        files = FileCache(self.disk)
        state, report = recover(
            self.disk, files, PATH, CheckpointedLog(), index_interval_bytes=200, now_ms=self.now_ms
        )
        assert report.cut is None
        assert not report.damage
        self.log = FilePartitionLog(self.disk, files, PATH, CONFIG, state)
        assert self.log.log_end_offset == end

    @rule(back=st.integers(1, 12))
    def truncate(self, back: int) -> None:
        target = self.log.log_end_offset - back
        if target <= 0 or target < self.committed:
            return
        self.log.truncate_to(target)
        del self.written[self.log.log_end_offset :]
        self.tombstone_cleaned_at = {
            at: ms for at, ms in self.tombstone_cleaned_at.items() if at < len(self.written)
        }
        states = {one.producer_id: one for one in self.log.producers.active()}
        self.sequence = states[5].last_sequence + 1 if 5 in states else self.sequence

    @invariant()
    def I35_holds(self) -> None:
        if not hasattr(self, "log"):
            return
        found = {record.offset: record for record in records(self.log)}
        newest = {key: offset for offset, (key, _, _) in enumerate(self.written)}
        for offset, record in found.items():
            key, value, timestamp = self.written[offset]
            assert (record.key, record.value, record.timestamp) == (key, value, timestamp)
        for key, offset in newest.items():
            if key == b"filler" or offset in found:
                continue
            assert self.written[offset][1] is None, f"the newest value of {key!r} is gone"
            due_ms = self.tombstone_cleaned_at[offset] + DELETE_RETENTION_MS
            assert due_ms <= self.now_ms, "a tombstone went before its horizon"
            older = [at for at, record in found.items() if record.key == key]
            assert not older, f"{key!r} came back when its tombstone went"


CompactedLog.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
test_I35_the_newest_value_of_each_key_stays = pytest.mark.slow(CompactedLog.TestCase)
