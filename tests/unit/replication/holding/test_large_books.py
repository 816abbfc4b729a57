"""A book that is large lies in files, which serve the process that wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coroutines import run
from tests.support.hold_stage import Replica, cancel, delay
from tidemill.core.limits import HOLD_TABLE_MAX
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.manual_clock import ManualClock

PER_BATCH = 2_000
COUNT = (HOLD_TABLE_MAX // PER_BATCH + 1) * PER_BATCH


@pytest.fixture
def disk() -> Iterator[OsDisk]:
    made = OsDisk()
    yield made
    made.close()


def runs(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.holdrun"))


def test_a_large_book_is_written_to_files_and_its_holds_come_once(disk, tmp_path):
    async def scenario():
        log = FilePartitionLog.create(disk, FileCache(disk), str(tmp_path / "t-0"), LogConfig())
        leading = Replica(ManualClock(), log, disk=disk).lead()
        for first in range(0, COUNT, PER_BATCH):
            leading.send(
                *((b"%d" % n, [delay(60_000 + n)]) for n in range(first, first + PER_BATCH))
            )
            await leading.work()
        assert len(runs(tmp_path / "t-0")) == 1
        leading.send((b"", cancel(b"0")))
        again = Replica(leading.clock, log, disk=disk).lead(epoch=1)
        await again.work()
        assert again.holds.book.pending == leading.holds.book.pending == COUNT - 1
        assert len(runs(tmp_path / "t-0")) == 1
        released = log.log_end_offset
        await again.pass_time(60 + COUNT / 1000)
        assert again.holds.book.pending == 0
        assert log.log_end_offset - released == COUNT - 1

    run(scenario())
