"""The finished windows of the pipeline `logs`, from Parquet, from its topic or from a batch.

Nothing here needs Spark.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Final, final

from tidemill.spark.pipelines.merging.batch_folders import BatchFolder

__all__ = [
    "Minute",
    "count_events",
    "minute_from_json",
    "minute_from_row",
    "newest_minutes",
    "read_minutes",
]

_TRIES_MAX: Final = 5
"""Of reading the files; each time another merge has replaced some of them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """The figures of one window."""

    start: datetime
    requests: int
    status: Mapping[str, int]
    """By class: 2xx, 3xx, 4xx, 5xx."""
    size_bytes: int
    latency_p50_ms: float | None
    """None, like the other two, if no line had a latency."""
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    top_paths: Sequence[tuple[str, int]]

    @property
    def errors(self) -> int:
        """Requests that the server failed to answer: status 5xx."""
        return self.status.get("5xx", 0)

    @property
    def error_share(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


def read_minutes(directory: str, minutes: int, window_s: int) -> list[Minute]:
    """The stored windows of the last `minutes` before the newest one ends, oldest first.

    Later batches of a query have later windows. So each query is read from its newest batch back
    to the first one with a window that is too old, and of those before it no file is opened. Files
    that are merged meanwhile vanish, and all is read again.
    """
    for _ in range(_TRIES_MAX - 1):
        with contextlib.suppress(FileNotFoundError):
            return _read_minutes(directory, minutes, window_s)
    return _read_minutes(directory, minutes, window_s)


def _read_minutes(directory: str, minutes: int, window_s: int) -> list[Minute]:
    queries = _batches_by_query(Path(directory), days=minutes // 1_440 + 2)
    found: dict[datetime, Minute] = {}
    for batches in queries:
        found |= _windows(batches.pop().files)
    for batches in queries:
        needed_from = 0
        while batches:
            made = batches.pop()
            if made.last < needed_from:
                break
            windows = _windows(made.files)
            found = windows | found
            if windows and min(windows) < _covered_since(found, minutes, window_s):
                # A merged folder may have left out a batch between its first and its last.
                needed_from = max(needed_from, made.first)
    return newest_minutes(found, minutes, window_s)


def newest_minutes(found: Mapping[datetime, Minute], minutes: int, window_s: int) -> list[Minute]:
    """The windows of the last `minutes` before the newest one ends, oldest first."""
    if not found:
        return []
    since = _covered_since(found, minutes, window_s)
    return [found[start] for start in sorted(found) if start >= since]


def _covered_since(found: Iterable[datetime], minutes: int, window_s: int) -> datetime:
    return max(found) + timedelta(seconds=window_s) - timedelta(minutes=minutes)


@final
@dataclass(slots=True)
class _StoredBatches:
    """The files of the batches from `first` to `last`."""

    first: int
    last: int
    files: list[Path]


def _batches_by_query(directory: Path, days: int) -> list[list[_StoredBatches]]:
    """For each query its batches, the newest one last, from the newest days."""
    queries: dict[str, dict[int, _StoredBatches]] = {}
    for folder in sorted(directory.glob("date=*"))[-days:]:
        for file in sorted(_parquet_files(folder)):
            named = BatchFolder.try_parse(file.parent.name)
            # Files that something else has put there have no order among each other.
            batches = named or BatchFolder(str(file), 0, 0)
            found = queries.setdefault(batches.query, {}).setdefault(
                batches.last, _StoredBatches(batches.first, batches.last, [])
            )
            found.first = min(found.first, batches.first)
            found.files.append(file)
    return [[batches for _, batches in sorted(made.items())] for _, made in sorted(queries.items())]


def _parquet_files(folder: Path) -> Iterator[Path]:
    """FileNotFoundError if a folder has vanished: its rows are elsewhere now."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _parquet_files(Path(entry.path))
            elif entry.name.endswith(".parquet"):
                yield Path(entry.path)


def _windows(files: Sequence[Path]) -> dict[datetime, Minute]:
    from pyarrow import dataset

    rows = dataset.dataset([str(file) for file in files], format="parquet").to_table().to_pylist()
    found = (_minute(row, row["time"]) for row in rows)
    return {minute.start: minute for minute in found}


def count_events(directory: str) -> int:
    """The number of stored events, from the footers of the files; a running pipeline adds more."""
    from pyarrow import dataset

    try:
        count: int = dataset.dataset(directory, format="parquet").count_rows()
    except FileNotFoundError:  # nothing is written yet, or a file is being replaced
        return 0
    return count


def minute_from_json(facts: Mapping[str, object]) -> Minute:
    """A window as the result topic has it."""
    start = datetime.fromisoformat(str(facts["start"]).replace("Z", "+00:00"))
    return _minute(facts, start)


def minute_from_row(row: Mapping[str, object]) -> Minute:
    """A window as a batch has it; Spark gives times without a zone in the zone of this process."""
    return _minute(row, row["start"])


def _minute(row: Mapping[str, object], start: object) -> Minute:
    assert isinstance(start, datetime)
    paths = row.get("top_paths")
    return Minute(
        start=start.astimezone(UTC),
        requests=_count(row.get("requests")),
        status={f"{n}xx": _count(row.get(f"status_{n}xx")) for n in (2, 3, 4, 5)},
        size_bytes=_count(row.get("bytes")),
        latency_p50_ms=_number(row.get("latency_p50_ms")),
        latency_p95_ms=_number(row.get("latency_p95_ms")),
        latency_p99_ms=_number(row.get("latency_p99_ms")),
        top_paths=[
            (str(item["path"]), _count(item["requests"]))
            for item in (paths if isinstance(paths, list) else [])
            if isinstance(item, dict)
        ],
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None
