"""The files of one log as they are in its directory, before they are checked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

from tidemill.core.errors import DiskFull
from tidemill.core.limits import MIB
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LEADER_EPOCHS_NAME,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    offset_path,
    try_parse_offset,
)
from tidemill.storage.index.segment_index import SegmentIndex, write_block
from tidemill.storage.log.segment import Segment
from tidemill.storage.log.segment_swap import finish_swaps
from tidemill.storage.state.leader_epochs import LeaderEpochs

__all__ = [
    "SegmentFile",
    "build_segments",
    "complete_index",
    "find_segment_files",
    "list_useful_names",
    "offsets_in",
    "try_read_epochs",
]

UNINDEXED_BYTES_MAX = MIB
"""A shorter segment is indexed when it is first appended to: about 6 ms."""

_USELESS_SUFFIXES = (CLEANED_SUFFIX, DELETED_SUFFIX, TEMPORARY_SUFFIX)


@final
@dataclass(slots=True)
class SegmentFile:
    """A segment's file, and what recovery knows about it so far."""

    path: str
    base_offset: int
    size_bytes: int
    next_offset: int


def list_useful_names(disk: Disk, directory: str) -> list[str]:
    """The names in a log's directory, after removing files that have no value."""
    names = disk.list_names(directory)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        finish_swaps(disk, directory, names)
        names = disk.list_names(directory)
    useless = [name for name in names if name.endswith(_USELESS_SUFFIXES)]
    for name in useless:
        disk.unlink(f"{directory}/{name}")
    return [name for name in names if name not in useless] if useless else names


def offsets_in(names: Sequence[str], suffix: str) -> list[int]:
    """The offsets in the names of this kind of file, rising."""
    offsets = [try_parse_offset(name, suffix) for name in names]
    return sorted(offset for offset in offsets if offset is not None)


def find_segment_files(
    disk: Disk, directory: str, names: Sequence[str], *, log_end_offset: int = 0
) -> list[SegmentFile]:
    """The segments by offset; each ends where the next begins, the last at the log's end."""
    bases = offsets_in(names, LOG_SUFFIX)
    ends = [*bases[1:], max(log_end_offset, bases[-1])] if bases else []
    segment_files = []
    for base_offset, next_offset in zip(bases, ends, strict=True):
        path = offset_path(directory, base_offset, LOG_SUFFIX)
        segment_files.append(SegmentFile(path, base_offset, disk.size(path), next_offset))
    return segment_files


def build_segments(
    disk: Disk,
    files: FileCache,
    directory: str,
    segment_files: Sequence[SegmentFile],
    *,
    index_interval_bytes: int,
) -> list[Segment]:
    """Segments for these files; the last one is the active one."""
    return [
        Segment(
            disk,
            files,
            directory,
            base_offset=found.base_offset,
            size_bytes=found.size_bytes,
            next_offset=found.next_offset,
            index_interval_bytes=index_interval_bytes,
            is_closed=found is not segment_files[-1],
        )
        for found in segment_files
    ]


def complete_index(
    disk: Disk, files: FileCache, directory: str, segment: SegmentFile, *, interval_bytes: int
) -> None:
    """Bring the index files of a long segment up to date: the first append loads them on the loop.

    Its bytes are durable. A full disk only means that the index is rebuilt later.
    """
    if segment.size_bytes <= UNINDEXED_BYTES_MAX:
        return
    index = SegmentIndex.load(
        disk,
        directory,
        files.get(segment.path),
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        interval_bytes=interval_bytes,
    )
    with suppress(DiskFull):
        for block in index.take_blocks(directory):
            write_block(disk, block)


def try_read_epochs(disk: Disk, directory: str, names: Sequence[str]) -> LeaderEpochs | None:
    """The content of the leader epochs file; None if there is none. Raises StorageFault."""
    if LEADER_EPOCHS_NAME not in names:
        return None
    path = f"{directory}/{LEADER_EPOCHS_NAME}"
    return LeaderEpochs.decode(disk.read_file(path), name=path)
