"""The folders of results that batches are written to: one for each date, or each hour of it.

    events/date=2026-05-01/hour=07/batch=...        an hour
    minutes/date=2026-05-01/batch=...               a day

Names that are not like this belong to someone else and are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, final

from tidemill.spark.pipelines.merging.batch_folders import BatchFolder

__all__ = ["ResultFolder", "ResultTree", "is_result_file"]

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


@final
@dataclass(frozen=True, slots=True)
class ResultFolder:
    """One folder with batches."""

    path: Path
    label: str
    """The values of its columns: `2026-05-01/07`, or `2026-05-01` without hours."""
    end_ms: int
    """Every time in it is before this one, in milliseconds since 1970."""
    is_linked: bool
    """Whether a link stands for it, or for its date: a user has moved it to another place."""

    def batches(self) -> Iterator[BatchFolder]:
        """Empty ones are left out: a merge that did not come to its end leaves one."""
        for path in _children(self.path, "batch="):
            found = BatchFolder.try_parse(path.name)
            if found is not None and any(is_result_file(file.name) for file in _children(path, "")):
                yield found


def is_result_file(name: str) -> bool:
    """Whether Spark reads a file of this name; it takes those with `.` or `_` for hidden."""
    return name.endswith(".parquet") and not name.startswith((".", "_"))


@final
@dataclass(frozen=True, slots=True)
class ResultTree:
    """All folders of one kind of result."""

    root: Path
    by_hour: bool

    def folders(self) -> Iterator[ResultFolder]:
        """Oldest first; those that vanish meanwhile are left out."""
        for day in _children(self.root, "date="):
            start_ms = _try_day_ms(day.name)
            if start_ms is None:
                continue
            text = _value(day)
            if not self.by_hour:
                yield ResultFolder(day, text, start_ms + _DAY_MS, day.is_symlink())
                continue
            for hour in _children(day, "hour="):
                if _value(hour).isdecimal():
                    end_ms = start_ms + (int(_value(hour)) + 1) * _HOUR_MS
                    is_linked = day.is_symlink() or hour.is_symlink()
                    yield ResultFolder(hour, f"{text}/{_value(hour)}", end_ms, is_linked)


def _children(folder: Path, prefix: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.startswith(prefix))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []  # also one that is not for us: a batch must not fail for it


def _value(folder: Path) -> str:
    return folder.name.partition("=")[2]


def _try_day_ms(name: str) -> int | None:
    try:
        day = date.fromisoformat(name.partition("=")[2])
    except ValueError:
        return None
    return (day.toordinal() - _EPOCH_DAY) * _DAY_MS
