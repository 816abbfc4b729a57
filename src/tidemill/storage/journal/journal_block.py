"""One block of the round journal: the new bytes of many segments, as they stand on disk.

    size  field
    4     CRC-32 of everything after it, up to the end of the block
    4     magic, "TMJ1"; the last character is the version
    16    id of the data directory
    8     lap: which filling of this file the block belongs to
    4     number of the block in its lap, from 0 on
    4     size of the block in bytes
    4     number of entries
    then for each entry:
    2     length of the name
    n     name of the log's directory
    16    topic id
    8     base offset of the segment
    8     position in the segment's file
    4     number of bytes
    then the bytes of all entries, in their order

All numbers are big-endian. Blocks begin at multiples of `SECTOR_BYTES`, so that a torn write of one
never touches a sector of the block before it, which may have been acknowledged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import final
from uuid import UUID

from tidemill.core.ids import TopicId
from tidemill.storage.files.disk import Buffer
from tidemill.storage.files.gathered_write import CHECKSUM_BYTES

__all__ = [
    "DEAD_HEAD",
    "SECTOR_BYTES",
    "BlockHead",
    "BlockPlace",
    "JournalEntry",
    "encode_entry",
    "encode_head",
    "encode_log_name",
    "iter_candidates",
    "iter_entries",
    "next_sector",
    "try_read_head",
    "try_read_lap",
]

SECTOR_BYTES = 512

_MAGIC = b"TMJ1"
_CRC = Struct(">I")
_HEAD = Struct(">4s16sQIII")
_NAME_LENGTH = Struct(">H")
_PLACE = Struct(">qQI")
_ID_BYTES = 16

DEAD_HEAD = bytes(_HEAD.size)
"""In place of a file's first head: nothing in this file counts."""


@final
@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Which block this is."""

    directory_id: UUID
    lap: int
    number: int


@final
@dataclass(frozen=True, slots=True)
class BlockHead:
    """A whole block that was found: its number in its lap, and its size."""

    number: int
    size_bytes: int


@final
@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Bytes that a segment must have, and where."""

    directory: str
    topic_id: TopicId
    base_offset: int
    position: int
    data: memoryview


def encode_log_name(directory: str, topic_id: TopicId) -> bytes:
    """How blocks call the log in this directory; the same directory may get another topic."""
    name = directory.encode()
    return _NAME_LENGTH.pack(len(name)) + name + topic_id.bytes


def encode_entry(log_name: bytes, base_offset: int, position: int, size_bytes: int) -> bytes:
    """Where the bytes of one entry belong; `log_name` comes from `encode_log_name`."""
    return log_name + _PLACE.pack(base_offset, position, size_bytes)


def encode_head(place: BlockPlace, entries: Sequence[bytes], content_bytes: int) -> bytes:
    """Everything between the checksum and the `content_bytes` bytes that follow the entries."""
    table = b"".join(entries)
    size = CHECKSUM_BYTES + _HEAD.size + len(table) + content_bytes
    head = _HEAD.pack(_MAGIC, place.directory_id.bytes, place.lap, place.number, size, len(entries))
    return head + table


def next_sector(position: int) -> int:
    """The first place at or after `position` where a block may begin."""
    return -(-position // SECTOR_BYTES) * SECTOR_BYTES


def iter_candidates(data: bytes, position: int) -> Iterator[int]:
    """Where blocks may begin, from `position` on: `try_read_head` decides."""
    at = data.find(_MAGIC, position)
    while at >= 0:
        if (at - CHECKSUM_BYTES) % SECTOR_BYTES == 0:
            yield at - CHECKSUM_BYTES
        at = data.find(_MAGIC, at + 1)


def try_read_lap(data: Buffer, directory_id: UUID) -> int | None:
    """The lap of the file that begins with `data`; None if nothing in it counts.

    Blocks are written over a dead head or zeros, and a sector is old or new: so a first sector that
    is neither, and no head, was damaged. ValueError.
    """
    view = memoryview(data)[:SECTOR_BYTES]
    if len(view) < SECTOR_BYTES or not any(view[CHECKSUM_BYTES : CHECKSUM_BYTES + _HEAD.size]):
        return None
    magic, found_id, lap, number, *_ = _HEAD.unpack_from(view, CHECKSUM_BYTES)
    if magic != _MAGIC or number:
        raise ValueError("the first block is damaged")
    return lap if found_id == directory_id.bytes else None


def try_read_head(data: Buffer, position: int, directory_id: UUID, lap: int) -> BlockHead | None:
    """The whole block of this lap at `position`; None if there is none.

    The lap is compared before the checksum: bytes of clients may look like the start of a block.
    """
    view = memoryview(data)[position:]
    if len(view) < CHECKSUM_BYTES + _HEAD.size:
        return None
    (checksum,) = _CRC.unpack_from(view)
    magic, found_id, found_lap, number, size, _ = _HEAD.unpack_from(view, CHECKSUM_BYTES)
    if (magic, found_id, found_lap) != (_MAGIC, directory_id.bytes, lap):
        return None
    is_whole = CHECKSUM_BYTES + _HEAD.size <= size <= len(view)
    if not is_whole or zlib.crc32(view[CHECKSUM_BYTES:size]) != checksum:
        return None
    return BlockHead(number, size)


def iter_entries(data: Buffer, position: int) -> Iterator[JournalEntry]:
    """The entries of a block that `try_read_head` found whole.

    Raises ValueError if they do not fill the block: another program wrote it.
    """
    view = memoryview(data)[position:]
    *_, size, count = _HEAD.unpack_from(view, CHECKSUM_BYTES)
    places, at = _read_table(view[:size], CHECKSUM_BYTES + _HEAD.size, count)
    if at + sum(place[-1] for place in places) != size:
        raise ValueError("the entries do not fill their block")
    for directory, topic_id, base_offset, where, size_bytes in places:
        yield JournalEntry(directory, topic_id, base_offset, where, view[at : at + size_bytes])
        at += size_bytes


def _read_table(
    view: memoryview, at: int, count: int
) -> tuple[list[tuple[str, TopicId, int, int, int]], int]:
    places = []
    for _ in range(count):
        if at + _NAME_LENGTH.size > len(view):
            raise ValueError("the entries are longer than their block")
        (length,) = _NAME_LENGTH.unpack_from(view, at)
        id_at = at + _NAME_LENGTH.size + length
        place_at = id_at + _ID_BYTES
        if place_at + _PLACE.size > len(view):
            raise ValueError("an entry is longer than its block")
        directory = bytes(view[at + _NAME_LENGTH.size : id_at]).decode()
        topic_id = TopicId(UUID(bytes=bytes(view[id_at:place_at])))
        places.append((directory, topic_id, *_PLACE.unpack_from(view, place_at)))
        at = place_at + _PLACE.size
    return places, at
