"""A tree of results as Spark writes it, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from tidemill.core.clock import Clock
from tidemill.spark.pipelines.merging.batch_folders import BatchFolder
from tidemill.spark.pipelines.merging.file_merging import FileMerging
from tidemill.testing.manual_clock import SimClock

QUERY = "1f0c2d3e"
HOUR = "date=2026-05-01/hour=07"
HOUR_START = datetime(2026, 5, 1, 7)
DAY_END_MS = 1_777_680_000_000


def write_batch(
    output: Path, batch_id: int, rows: Iterable[int], *, query: str = QUERY, place: str = HOUR
) -> Path:
    """Rows are numbers; a checksum file lies beside the file, as Hadoop's local files have one."""
    numbers = list(rows)
    table = pa.table(
        {
            "time": pa.array(
                [HOUR_START + timedelta(seconds=n) for n in numbers], pa.timestamp("us")
            ),
            "offset": pa.array(numbers, pa.int64()),
        }
    )
    folder = output / "events" / place / f"batch={query}-{batch_id}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-00000-{batch_id}.snappy.parquet"
    parquet.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False)
    (folder / f".{path.name}.crc").write_bytes(b"crc")
    return path


def numbers_in(output: Path) -> list[int]:
    """The rows that a reader finds, as often as it finds them."""
    found: list[int] = []
    for path in sorted((output / "events").rglob("*.parquet")):
        found += parquet.read_table(path, partitioning=None)["offset"].to_pylist()
    return sorted(found)


def folders_in(output: Path, place: str = HOUR) -> list[str]:
    return sorted(path.name for path in (output / "events" / place).iterdir())


def hasty_clock() -> Clock:
    """Ten seconds pass between two readings: no merged folder has to wait for its time."""
    return SimClock(itertools.count(0, 10).__next__)


def merging_of(
    output: Path, *, done: int | None = None, query: str = QUERY, clock: Clock | None = None
) -> FileMerging:
    """After batch `done`, with all folders closed."""
    made = FileMerging(str(output), {"events": True}, is_active=True, clock=clock or hasty_clock())
    if done is not None:
        made.batch_written(BatchFolder(query, done + 1, done + 1), DAY_END_MS)
    return made


def finish(merging: FileMerging) -> None:
    while merging.step():
        pass
