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

__all__ = [
    "CRC_BYTES",
    "DEAD_HEAD",
    "SECTOR_BYTES",
    "BlockPlace",
    "JournalEntry",
    "encode_entry",
    "encode_head",
    "encode_log_name",
    "iter_candidates",
    "iter_entries",
    "next_sector",
    "try_read_head",
]

SECTOR_BYTES = 512
CRC_BYTES = 4

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
    size = CRC_BYTES + _HEAD.size + len(table) + content_bytes
    head = _HEAD.pack(_MAGIC, place.directory_id.bytes, place.lap, place.number, size, len(entries))
    return head + table


def next_sector(position: int) -> int:
    """The first place at or after `position` where a block may begin."""
    return -(-position // SECTOR_BYTES) * SECTOR_BYTES


def iter_candidates(data: bytes, position: int) -> Iterator[int]:
    """Where blocks may begin, from `position` on: `try_read_head` decides."""
    at = data.find(_MAGIC, position)
    while at >= 0:
        if (at - CRC_BYTES) % SECTOR_BYTES == 0:
            yield at - CRC_BYTES
        at = data.find(_MAGIC, at + 1)


def try_read_head(data: Buffer, position: int) -> tuple[BlockPlace, int] | None:
    """Which whole block stands at `position`, and its size; None if there is none."""
    view = memoryview(data)[position:]
    if len(view) < CRC_BYTES + _HEAD.size:
        return None
    (checksum,) = _CRC.unpack_from(view)
    magic, directory_id, lap, number, size, _ = _HEAD.unpack_from(view, CRC_BYTES)
    if magic != _MAGIC or not CRC_BYTES + _HEAD.size <= size <= len(view):
        return None
    if zlib.crc32(view[CRC_BYTES:size]) != checksum:
        return None
    return BlockPlace(UUID(bytes=directory_id), lap, number), size


def iter_entries(data: Buffer, position: int) -> Iterator[JournalEntry]:
    """The entries of a block that `try_read_head` found whole.

    Raises ValueError if they do not fill the block: another program wrote it.
    """
    view = memoryview(data)[position:]
    *_, size, count = _HEAD.unpack_from(view, CRC_BYTES)
    places, at = _read_table(view[:size], CRC_BYTES + _HEAD.size, count)
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
