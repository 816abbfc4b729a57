"""The files of a partition's held records: sorted runs, and snapshots of what is known about them.

    NNNNNNNNNNNNNNNNNNNN.holdrun    run number N, never changed
    NNNNNNNNNNNNNNNNNNNN.holds      the state after everything below offset N: the runs that it
                                    needs, and what only memory knows

    snapshot    offset i64, count u32, numbers of the runs i64 each, the rest

Nothing depends on them: what they say is in the log, and a file that is lost or damaged costs a
longer replay. The newest two snapshots are kept, and the runs that they or the book in memory need.
A snapshot behind the end of the log describes batches that were cut. It goes before anything can be
appended in their place, because later nobody could tell.

All methods but `next_run` touch the disk: call them in a thread, one at a time per partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, final

from tidemill.core.errors import StorageFault, UserError
from tidemill.storage.files.checked_file import DamagedFile, decode_checked, encode_checked
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.log_file_names import (
    HOLD_RUN_SUFFIX,
    HOLD_SNAPSHOT_SUFFIX,
    offset_path,
    try_parse_offset,
)

__all__ = ["HoldFiles", "StoredHolds"]

_KEPT = 2
_VERSION = 3
_RUN_KIND = b"HRUN"
_SNAPSHOT_KIND = b"HSNP"
_HEAD = Struct(">qI")
_NUMBER = Struct(">q")
_NUMBERS_END = 1 << 62


class StoredHolds(NamedTuple):
    """A snapshot that was read whole."""

    offset: int
    state: memoryview
    runs: dict[int, memoryview]
    """By number: mapped files, or copies where mapping is not possible."""


@final
class HoldFiles:
    """Which of these files a log's directory has."""

    def __init__(self, disk: Disk, directory: str, names: Iterable[str]) -> None:
        self._disk = disk
        self._directory = directory
        names = list(names)
        self._runs = set(_numbers(names, HOLD_RUN_SUFFIX))
        self._snapshots: dict[int, list[int] | None] = {}
        """The runs that each snapshot needs; None: not read yet."""
        for offset in _numbers(names, HOLD_SNAPSHOT_SUFFIX):
            self._snapshots[offset] = None
        self._next_run = max(self._runs, default=-1) + 1

    @property
    def next_run(self) -> int:
        """A number above those of all runs that there are or were."""
        return self._next_run

    # --- runs ------------------------------------------------------------------------------------

    def write_run(self, number: int, run: Buffer) -> memoryview:
        """Write a run; the view of the file that was made of it."""
        path = self._run_path(number)
        data = encode_checked(_RUN_KIND, _VERSION, run)
        self._runs.add(number)
        self._next_run = max(self._next_run, number + 1)
        self._disk.write_file_atomically(path, data)
        return self._payload(path, _RUN_KIND, data)

    def _read_run(self, number: int) -> memoryview:
        path = self._run_path(number)
        return self._payload(path, _RUN_KIND, self._disk.read_file(path))

    def _payload(self, path: str, kind: bytes, data: bytes) -> memoryview:
        """What is in a file whose content is `data`: mapped, so that it takes no memory."""
        payload = decode_checked(data, kind=kind, version=_VERSION, name=path)
        file = self._disk.open(path)
        view = file.try_resident_view(0, len(data))
        if view is None:  # a small file is mapped when it is found to have stopped growing
            view = file.try_resident_view(0, len(data))
        if view is None:
            return payload
        # The bytes were verified; the map shows the same ones, since the file never changes.
        start = len(data) - len(payload) - _TAIL_BYTES
        return view[start : start + len(payload)]

    # --- snapshots -------------------------------------------------------------------------------

    def write_snapshot(self, offset: int, state: Buffer, runs: Sequence[int]) -> None:
        """Keep the state after everything below `offset`; the batches below are durable already."""
        numbers = b"".join([_NUMBER.pack(number) for number in runs])
        payload = _HEAD.pack(offset, len(runs)) + numbers + state
        path = offset_path(self._directory, offset, HOLD_SNAPSHOT_SUFFIX)
        self._disk.write_file_atomically(path, encode_checked(_SNAPSHOT_KIND, _VERSION, payload))
        self._snapshots[offset] = list(runs)
        for old in sorted(self._snapshots)[:-_KEPT]:
            self.drop_snapshot(old)

    def iter_newest(self, end_offset: int) -> Iterator[StoredHolds]:
        """The snapshots that can be read whole, newest first; those behind the end are removed."""
        self.drop_after(end_offset)
        for offset in sorted(self._snapshots, reverse=True):
            try:
                yield self._read_snapshot(offset)
            except (StorageFault, UserError):  # damaged, or of another version
                self.drop_snapshot(offset)

    def drop_snapshots(self) -> None:
        """None of them is of this log."""
        self.drop_after(-1)

    def drop_after(self, end_offset: int) -> None:
        """The log ends at `end_offset`: later snapshots describe batches that are not there."""
        cut = [offset for offset in self._snapshots if offset > end_offset]
        for offset in cut:
            self.drop_snapshot(offset)
        if cut:
            self._disk.sync_directory(self._directory)  # none may come back with a crash

    def _read_snapshot(self, offset: int) -> StoredHolds:
        path = offset_path(self._directory, offset, HOLD_SNAPSHOT_SUFFIX)
        payload = decode_checked(
            self._disk.read_file(path), kind=_SNAPSHOT_KIND, version=_VERSION, name=path
        )
        numbers = _runs_of(payload, offset, path)
        self._snapshots[offset] = numbers
        runs = {number: self._read_run(number) for number in numbers}
        return StoredHolds(offset, payload[_HEAD.size + _NUMBER.size * len(numbers) :], runs)

    def drop_snapshot(self, offset: int) -> None:
        """It is damaged, too old, or of another log."""
        self._disk.unlink(offset_path(self._directory, offset, HOLD_SNAPSHOT_SUFFIX))
        del self._snapshots[offset]

    # --- what nobody needs -----------------------------------------------------------------------

    def drop_unused(self, used: Collection[int]) -> None:
        """Remove the runs that neither a snapshot needs nor the book, which uses these."""
        if None in self._snapshots.values():
            return  # it may need any of them
        needed = {number for runs in self._snapshots.values() for number in runs or ()}
        for number in sorted(self._runs - needed - set(used)):
            self._disk.unlink(self._run_path(number))
            self._runs.remove(number)

    def _run_path(self, number: int) -> str:
        return offset_path(self._directory, number, HOLD_RUN_SUFFIX)


_TAIL_BYTES = 4
"""The checksum behind the payload of a checked file."""


def _runs_of(payload: memoryview, offset: int, name: str) -> list[int]:
    if len(payload) < _HEAD.size:
        raise DamagedFile(f"{name}: {len(payload)} bytes are too few")
    found, count = _HEAD.unpack_from(payload)
    end = _HEAD.size + _NUMBER.size * count
    if found != offset or end > len(payload):
        raise DamagedFile(f"{name}: not the snapshot of offset {offset}")
    return [number for (number,) in _NUMBER.iter_unpack(payload[_HEAD.size : end])]


def _numbers(names: Sequence[str], suffix: str) -> list[int]:
    """Those that fit the files: twenty digits may say more, but not in a name of ours."""
    found = [try_parse_offset(name, suffix) for name in names]
    return [number for number in found if number is not None and number < _NUMBERS_END]
