"""What a shard does of its own accord, cut into pieces that one batch of the log holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.core.limits import KIB

__all__ = ["BatchSizedWork"]

SLICE_BYTES = 256 * KIB
"""Half of what a batch may be at the least, so that the last piece of work may be as large."""
STEPS_MAX = 100
"""Groups or members that are dealt with before others get a turn of the loop."""


@final
class BatchSizedWork:
    """The results of several steps as one; after each, `is_full` says whether to stop."""

    __slots__ = ("_size_bytes", "_steps", "result")

    def __init__(self) -> None:
        self.result: Result[None] = Result(None)
        self._size_bytes = 0
        self._steps = 0

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= SLICE_BYTES or self._steps >= STEPS_MAX

    def add(self, step: Result[None]) -> None:
        """Something that was done."""
        self._steps += 1
        self.result.replies += step.replies
        for record in step.records:
            self._append(record)

    def add_until_full(self, records: Iterable[CoordinatorRecord]) -> bool:
        """As many of the records as there is room for; whether all found room."""
        self._steps += 1
        for record in records:
            if self._size_bytes >= SLICE_BYTES:
                return False
            self._append(record)
        return True

    def _append(self, record: CoordinatorRecord) -> None:
        self._size_bytes += len(record.key) + len(record.value or b"")
        self.result.records.append(record)
