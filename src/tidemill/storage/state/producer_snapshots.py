"""The producer snapshots of one log, taken at each roll and checkpoint to keep replay short.

A snapshot named N is the state after everything below offset N. It is captured on the loop, and the
next flush encodes and writes it after the batches that it describes. The newest two are kept (R10).
A snapshot that is lost, damaged, or from before a truncation costs a longer replay, never a wrong
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.log_file_names import SNAPSHOT_SUFFIX, offset_path
from tidemill.storage.state.producer_capture import ProducerCapture
from tidemill.storage.state.producer_state import ProducerStates

__all__ = ["ProducerSnapshots"]

_KEPT = 2


@final
class ProducerSnapshots:
    """Which snapshots exist, and which still have to be written."""

    def __init__(self, disk: Disk, directory: str, stored_offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self._directory = directory
        self._stored = sorted(stored_offsets)
        self._pending: dict[int, ProducerCapture] = {}
        """Captured, not yet written; oldest first."""

    @property
    def newest_offset(self) -> int:
        """Of the newest snapshot, written or not; -1 if there is none."""
        return max((*self._stored[-1:], *self._pending), default=-1)

    def take(self, producers: ProducerStates, offset: int) -> None:
        """Capture the state as it is now, after everything below `offset`."""
        self._pending[offset] = producers.capture(offset)
        for old in list(self._pending)[:-_KEPT]:
            del self._pending[old]

    @property
    def has_pending(self) -> bool:
        """Whether a snapshot waits to be written."""
        return bool(self._pending)

    def contents(self) -> list[tuple[str, Callable[[], bytes]]]:
        """The snapshots to write: path and content."""
        return [(self._path(offset), taken.encode) for offset, taken in self._pending.items()]

    def pending_offsets(self) -> list[int]:
        return list(self._pending)

    def obsolete(self) -> list[str]:
        """The paths to unlink once the pending snapshots are written."""
        alive = sorted({*self._stored, *self._pending})[-_KEPT:]
        return [self._path(offset) for offset in self._stored if offset not in alive]

    def written(self, offsets: Sequence[int]) -> None:
        """These are on disk now, and those they made obsolete are unlinked."""
        for offset in offsets:
            self._pending.pop(offset, None)
        self._stored = sorted({*self._stored, *offsets})[-_KEPT:]

    def covered_end(self, offset: int) -> int:
        """How far, up to `offset`, a start knows the producers without the batches."""
        return min(offset, *self._stored[-1:] or (-1,)) if self._pending else offset

    def has_stored(self, offset: int) -> bool:
        """Whether the snapshot of this offset is on disk."""
        return offset in self._stored

    def drop_after(self, offset: int) -> None:
        """The log was cut at `offset`: unlink later snapshots, which describe lost batches."""
        for path in self.forget_after(offset):
            self._disk.unlink(path)

    def forget_after(self, offset: int) -> list[str]:
        """The same, but the caller unlinks: the paths."""
        paths = [self._path(stored) for stored in self._stored if stored > offset]
        self._stored = [stored for stored in self._stored if stored <= offset]
        self._pending = {at: taken for at, taken in self._pending.items() if at <= offset}
        return paths

    def copy(self) -> ProducerSnapshots:
        """What is known now, for a thread."""
        copied = ProducerSnapshots(self._disk, self._directory, self._stored)
        copied._pending = dict(self._pending)
        return copied

    def try_load_newest(self, offset: int) -> tuple[ProducerStates, int] | None:
        """The newest usable snapshot at or before `offset`: the state and its offset."""
        for at in sorted({*self._stored, *self._pending}, reverse=True):
            if at > offset:
                continue
            try:
                states, found = ProducerStates.decode(self._content(at), name=self._path(at))
            except StorageFault:
                continue
            if found == at:
                return states, at
        return None

    def _content(self, offset: int) -> bytes:
        taken = self._pending.get(offset)
        return self._disk.read_file(self._path(offset)) if taken is None else taken.encode()

    def _path(self, offset: int) -> str:
        return offset_path(self._directory, offset, SNAPSHOT_SUFFIX)
