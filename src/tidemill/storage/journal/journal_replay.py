"""Writes what the journal holds over the segments: the first step of a start after a crash.

A lap is read from the first block of a file up to the last whole block of that lap. The last one of
all may be torn: it was not acknowledged. One that is not whole and has others of its lap behind it
is damage, which is counted and reported. The older lap comes first, although the order does not
matter: segments only grow, so two entries for one place have the same bytes.

An entry is skipped if its directory now belongs to another topic, or the segment is gone: the log
was deleted, or retention dropped the segment. A name that is missing for any other reason cannot
be: it was durable before its first entry.

When all segments are synced the journal's files are removed. A crash before that repeats the whole
replay, and nothing else has changed the segments in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import final
from uuid import UUID

from tidemill.core.ids import TopicId
from tidemill.storage.files.disk import Disk, DiskFile
from tidemill.storage.files.log_file_names import LOG_SUFFIX, offset_path
from tidemill.storage.journal.journal_block import (
    BlockPlace,
    JournalEntry,
    iter_candidates,
    iter_entries,
    next_sector,
    try_read_head,
)
from tidemill.storage.journal.round_journal import JOURNAL_NAMES

__all__ = ["Replayed", "TopicIdOf", "remove_journal", "replay_journal"]

TopicIdOf = Callable[[str], TopicId | None]
"""The topic that a log's directory, by its name, belongs to; None if it is none."""

_OPEN_FILES_MAX = 256
"""Segments that a replay keeps open at a time."""


@final
@dataclass(slots=True)
class Replayed:
    """What a replay did."""

    entries: int = 0
    written_bytes: int = 0
    """Bytes that the segments did not have."""
    skipped: int = 0
    """Entries of logs and segments that are gone."""
    lost_blocks: int = 0
    """Damaged blocks: what they acknowledged may be missing from the segments."""


def replay_journal(
    disk: Disk, directory: str, directory_id: UUID, topic_id_of: TopicIdOf
) -> Replayed:
    """Lay the journal's bytes over the segments, durably. Raises StorageFault."""
    replay = _Replay(disk, directory, topic_id_of)
    laps = [_try_read_lap(disk, f"{directory}/{name}", directory_id) for name in JOURNAL_NAMES]
    for _, data in sorted(filter(None, laps), key=lambda lap: lap[0]):
        reader = _LapReader(data)
        for entry in reader.entries():
            replay.apply(entry)
        replay.done.lost_blocks += reader.lost_blocks
    replay.sync()
    return replay.done


def remove_journal(disk: Disk, directory: str) -> None:
    """Its bytes are in the segments: no later crash may replay them."""
    paths = [f"{directory}/{name}" for name in JOURNAL_NAMES]
    if any(map(disk.exists, paths)):
        for path in paths:
            disk.unlink(path)
        disk.sync_directory(directory)


def _try_read_lap(disk: Disk, path: str, directory_id: UUID) -> tuple[int, bytes] | None:
    """The number of the lap in this file, and the file; None if it has none of ours."""
    if not disk.exists(path):
        return None
    data = disk.read_file(path)
    found = try_read_head(data, 0)
    if found is None or found[0].directory_id != directory_id or found[0].number:
        return None
    return found[0].lap, data


@final
class _LapReader:
    """The blocks of the lap that begins a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.lost_blocks = 0
        """Blocks that were there and are not whole any more."""

    def entries(self) -> Iterator[JournalEntry]:
        position, expected = 0, try_read_head(self._data, 0)
        place = expected[0] if expected is not None else None
        while place is not None and (found := self._next_block(position, place)) is not None:
            at, number, size = found
            self.lost_blocks += number - place.number
            yield from iter_entries(self._data, at)
            place = BlockPlace(place.directory_id, place.lap, number + 1)
            position = next_sector(at + size)

    def _next_block(self, position: int, place: BlockPlace) -> tuple[int, int, int] | None:
        """Position, number and size of the first block of the lap that is not before `place`."""
        for at in iter_candidates(self._data, position):
            found = try_read_head(self._data, at)
            if found is not None and _is_later(found[0], place):
                return at, found[0].number, found[1]
        return None


def _is_later(found: BlockPlace, place: BlockPlace) -> bool:
    is_same_lap = (found.directory_id, found.lap) == (place.directory_id, place.lap)
    return is_same_lap and found.number >= place.number


@final
class _Replay:
    def __init__(self, disk: Disk, directory: str, topic_id_of: TopicIdOf) -> None:
        self._disk = disk
        self._directory = directory
        self._topic_id_of = lru_cache(maxsize=None)(topic_id_of)
        self._files: dict[str, DiskFile] = {}
        """Segments that were written to and are not synced yet."""
        self.done = Replayed()

    def apply(self, entry: JournalEntry) -> None:
        self.done.entries += 1
        file = self._try_open(entry)
        if file is None:
            self.done.skipped += 1
        elif file.pread(len(entry.data), entry.position) != entry.data:
            file.pwrite([entry.data], entry.position)
            self.done.written_bytes += len(entry.data)

    def sync(self) -> None:
        for file in self._files.values():
            file.sync()
            file.close()
        self._files = {}

    def _try_open(self, entry: JournalEntry) -> DiskFile | None:
        if self._topic_id_of(entry.directory) != entry.topic_id:
            return None
        path = offset_path(f"{self._directory}/{entry.directory}", entry.base_offset, LOG_SUFFIX)
        file = self._files.get(path)
        if file is None and self._disk.exists(path):
            if len(self._files) >= _OPEN_FILES_MAX:
                self.sync()
            file = self._files[path] = self._disk.open(path)
        return file
