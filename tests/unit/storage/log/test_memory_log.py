"""Behaviour of the memory log alone; tests/contract/test_partition_log.py covers both logs."""

from __future__ import annotations

import pytest

from tests.support.batches import NOW_MS, fill
from tidemill.storage.log.flush_point import FlushPoint
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.memory_log import MemoryPartitionLog


def test_everything_appended_counts_as_flushed():
    log = MemoryPartitionLog(LogConfig())
    fill(log, 3)
    assert log.flushed_offset == 3
    assert log.take_flush_point() is None


def test_it_accepts_no_report_of_a_flush_point():
    log = MemoryPartitionLog(LogConfig())
    with pytest.raises(NotImplementedError):
        log.flushed(FlushPoint(0, lambda: None))


def test_retention_frees_memory_batch_by_batch():
    log = MemoryPartitionLog(LogConfig(retention_bytes=500))
    fill(log, 100)
    log.apply_retention(now_ms=NOW_MS, high_watermark=100)
    assert 500 <= log.size_bytes < 600
