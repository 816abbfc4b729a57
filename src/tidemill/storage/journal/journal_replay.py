"""Writes what the journal holds over the segments: the first step of a start after a crash.

A lap is read from the first block of a file up to the last whole block of that lap. The last one of
all may be torn: it was not acknowledged. One that is not whole and has others of its lap behind it
is damage, which is counted and reported. The order of entries does not matter: segments only grow,
so two entries for one place have the same bytes.

An entry is skipped if its directory now belongs to another topic, or the segment is gone: the log
was deleted, or retention dropped the segment. A name that is missing for any other reason cannot
be: it was durable before its first entry.

When all segments are synced the journal's files are removed. A crash before that repeats the whole
replay, and nothing else has changed the segments in between. A log whose files cannot be read or
written is not loaded by this start; what the journal has of it moves to `KEPT_NAME`, and the next
start tries again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final
from uuid import UUID

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicId
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.gathered_write import CHECKSUM_BYTES
from tidemill.storage.files.log_file_names import LOG_SUFFIX, offset_path
from tidemill.storage.journal.journal_block import (
    BlockHead,
    BlockPlace,
    JournalEntry,
    encode_entry,
    encode_head,
    encode_log_name,
    iter_candidates,
    iter_entries,
    next_sector,
    try_read_head,
    try_read_lap,
)
from tidemill.storage.journal.round_journal import JOURNAL_NAMES

__all__ = ["KEPT_NAME", "Replayed", "TopicIdOf", "remove_journal", "replay_journal"]

TopicIdOf = Callable[[str], TopicId | None]
"""The topic that a log's directory, by its name, belongs to; None if it is none."""

KEPT_NAME = "round-journal.kept"
"""Holds entries of logs that could not be replayed; a file like the others, of one lap."""
_KEPT_LAP = 1


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
    failed: dict[str, StorageFault] = field(default_factory=dict)
    """Directories of logs whose files could not be read or written."""

    def check(self, directory: str) -> None:
        """Raises the fault of a log that lacks what the journal has."""
        if directory in self.failed:
            raise self.failed[directory]


def replay_journal(
    disk: Disk, directory: str, directory_id: UUID, topic_id_of: TopicIdOf
) -> Replayed:
    """Lay the journal's bytes over the segments, durably, and end the journal.

    Raises StorageFault if the journal cannot be read or ended.
    """
    replay = _Replay(disk, directory, topic_id_of)
    for name in (KEPT_NAME, *JOURNAL_NAMES):
        path = f"{directory}/{name}"
        if disk.exists(path):
            replay.add(_LapReader(disk.read_file(path), directory_id))
    kept = replay.run()
    if kept:
        place = BlockPlace(directory_id, _KEPT_LAP, 0)
        disk.write_file_atomically(f"{directory}/{KEPT_NAME}", _encode_block(place, kept))
    remove_journal(disk, directory, JOURNAL_NAMES if kept else (KEPT_NAME, *JOURNAL_NAMES))
    return replay.done


def remove_journal(disk: Disk, directory: str, names: Iterable[str] = JOURNAL_NAMES) -> None:
    """Its bytes are in synced segments: no later crash may replay them."""
    paths = [path for name in names if disk.exists(path := f"{directory}/{name}")]
    for path in paths:
        disk.unlink(path)
    if paths:
        disk.sync_directory(directory)


def _encode_block(place: BlockPlace, entries: Sequence[JournalEntry]) -> bytes:
    heads = [
        encode_entry(
            encode_log_name(entry.directory, entry.topic_id),
            entry.base_offset,
            entry.position,
            len(entry.data),
        )
        for entry in entries
    ]
    content = b"".join(entry.data for entry in entries)
    body = encode_head(place, heads, len(content)) + content
    block = zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") + body
    return block.ljust(next_sector(len(block)), b"\0")


@final
class _LapReader:
    """The blocks of the lap that begins a file."""

    def __init__(self, data: bytes, directory_id: UUID) -> None:
        self._data = data
        self._directory_id = directory_id
        self.lost_blocks = 0
        """Blocks that were there and are not whole any more."""

    def entries(self) -> Iterator[JournalEntry]:
        try:
            lap = try_read_lap(self._data, self._directory_id)
        except ValueError:
            self.lost_blocks += 1
            return
        if lap is None:
            return
        position = number = 0
        while (found := self._next_block(position, lap, number)) is not None:
            position, head = found
            self.lost_blocks += head.number - number
            try:
                yield from iter_entries(self._data, position)
            except ValueError:
                self.lost_blocks += 1
            position, number = next_sector(position + head.size_bytes), head.number + 1

    def _next_block(self, position: int, lap: int, number: int) -> tuple[int, BlockHead] | None:
        """The first whole block from `number` on, and its position."""
        for at in iter_candidates(self._data, position):
            head = try_read_head(self._data, at, self._directory_id, lap)
            if head is not None and head.number >= number:
                return at, head
        return None


@final
class _Replay:
    """Collects entries by segment, so that each file is opened and synced once."""

    def __init__(self, disk: Disk, directory: str, topic_id_of: TopicIdOf) -> None:
        self._disk = disk
        self._directory = directory
        self._topic_id_of = lru_cache(maxsize=None)(topic_id_of)
        self._by_segment: dict[tuple[str, int], list[JournalEntry]] = {}
        self.done = Replayed()

    def add(self, reader: _LapReader) -> None:
        for entry in reader.entries():
            self.done.entries += 1
            self._by_segment.setdefault((entry.directory, entry.base_offset), []).append(entry)
        self.done.lost_blocks += reader.lost_blocks

    def run(self) -> list[JournalEntry]:
        """Write and sync every segment; the entries of logs that failed."""
        for (directory, base_offset), entries in self._by_segment.items():
            try:
                self._write(directory, base_offset, entries)
            except StorageFault as fault:
                self.done.failed.setdefault(directory, fault)
        return [
            entry
            for (directory, _), entries in self._by_segment.items()
            if directory in self.done.failed
            for entry in entries
        ]

    def _write(self, directory: str, base_offset: int, entries: Sequence[JournalEntry]) -> None:
        path = offset_path(f"{self._directory}/{directory}", base_offset, LOG_SUFFIX)
        topic_id = self._topic_id_of(directory)
        ours = [entry for entry in entries if entry.topic_id == topic_id]
        if not ours or not self._disk.exists(path):
            self.done.skipped += len(entries)
            return
        self.done.skipped += len(entries) - len(ours)
        file = self._disk.open(path)
        try:
            for entry in ours:
                if file.pread(len(entry.data), entry.position) != entry.data:
                    file.pwrite([entry.data], entry.position)
                    self.done.written_bytes += len(entry.data)
            file.sync()
        finally:
            file.close()
