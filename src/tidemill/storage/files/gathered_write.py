"""A gathered write: bytes of many files go behind a head into one file, in one write.

What is written, one field after the other:

    checksum   4 bytes, big endian: CRC-32 (zlib's) of everything behind it
    head       as the caller made it
    ranges     the bytes of each range, in order

`Disk.write_gathered` does it off the event loop. What is here is the same in the calling thread,
over files of any disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar
from zlib import crc32

from tidemill.core.errors import StorageFault, invariant
from tidemill.core.limits import GATHERED_BYTES_MAX, GATHERED_RANGES_MAX
from tidemill.storage.files.os_file import Buffer

__all__ = ["CHECKSUM_BYTES", "GatherFile", "check_gathered", "short_range", "write_gathered_now"]

CHECKSUM_BYTES = 4


class GatherFile(Protocol):
    """What a gathered write needs of a file."""

    @property
    def path(self) -> str: ...

    def pread(self, size: int, position: int) -> bytes: ...

    def pwrite(self, chunks: Sequence[Buffer], position: int) -> int: ...

    def sync(self) -> None: ...


F = TypeVar("F")


def check_gathered(head: Buffer, ranges: Sequence[tuple[F, int, int]]) -> None:
    """Refuse what no caller may ask for: a thread must hold all of it in memory."""
    gathered_bytes = sum(size for _, _, size in ranges)
    invariant(
        not any(position < 0 or size < 0 for _, position, size in ranges),
        "a gathered range begins before its file, or ends before it begins",
    )
    invariant(
        len(ranges) <= GATHERED_RANGES_MAX
        and gathered_bytes <= GATHERED_BYTES_MAX
        and len(head) <= GATHERED_BYTES_MAX,
        f"a gathered write of {len(ranges)} ranges, {gathered_bytes} bytes behind {len(head)}",
    )


def write_gathered_now(
    target: GatherFile, position: int, head: Buffer, ranges: Sequence[tuple[GatherFile, int, int]]
) -> None:
    """`Disk.write_gathered` in the calling thread. Nothing is written if a range is short."""
    check_gathered(head, ranges)
    chunks: list[Buffer] = [head]
    for file, start, size in ranges:
        found = file.pread(size, start)
        if len(found) < size:
            raise short_range(file.path, start, size)
        chunks.append(found)
    checksum = 0
    for chunk in chunks:
        checksum = crc32(chunk, checksum)
    target.pwrite([checksum.to_bytes(CHECKSUM_BYTES, "big"), *chunks], position)
    target.sync()


def short_range(path: str, position: int, size: int) -> StorageFault:
    return StorageFault(f"{path}: ends before byte {position + size}, which is to be gathered")
