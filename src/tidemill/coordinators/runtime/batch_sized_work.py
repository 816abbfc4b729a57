"""Work that no client waits for, limited to what one batch of the log holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.core.limits import KIB

__all__ = ["BatchSizedWork"]

WORK_BYTES_MAX = 256 * KIB
"""Half of the smallest batch limit, so that the last step may be as large again."""
STEPS_MAX = 100
"""Groups or members handled before other tasks get a turn of the loop."""


@final
class BatchSizedWork:
    """The results of several steps as one; the caller stops when `is_full`."""

    __slots__ = ("_size_bytes", "_steps", "result")

    def __init__(self) -> None:
        self.result: Result[None] = Result(None)
        self._size_bytes = 0
        self._steps = 0

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= WORK_BYTES_MAX or self._steps >= STEPS_MAX

    def has_room(self, *, steps: int, size_bytes: int) -> bool:
        """Whether one more step fits after steps and bytes that are not added yet."""
        bytes_left = WORK_BYTES_MAX - self._size_bytes
        return self._steps + steps < STEPS_MAX and size_bytes < bytes_left

    def add(self, step: Result[None], *, steps: int = 1) -> None:
        """Add the whole result of one step, or of several, even beyond the limit."""
        self._steps += steps
        self.result.replies += step.replies
        if step.effects:
            self.result.effects = [*self.result.effects, *step.effects]
        for record in step.records:
            self._append(record)

    def add_until_full(self, records: Iterable[CoordinatorRecord]) -> bool:
        """Add records until the limit is reached; False if some are left."""
        self._steps += 1
        for record in records:
            if self._size_bytes >= WORK_BYTES_MAX:
                return False
            self._append(record)
        return True

    def _append(self, record: CoordinatorRecord) -> None:
        self._size_bytes += len(record.key) + len(record.value or b"")
        self.result.records.append(record)
