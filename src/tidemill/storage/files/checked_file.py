"""The format of small files: damage is detected, and a newer version is refused, never guessed.

    offset  size  field
    0       4     magic, "TMCF"
    4       4     kind, four letters: what the payload is
    8       2     version of the payload
    10      2     zero
    12      4     payload length
    16      n     payload
    16+n    4     CRC32C of everything before it

A file that grows by appending (an index) is a sequence of such blocks; reading stops at the first
block that is not whole. All numbers are big-endian.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from crc32c import crc32c

from tidemill.core.errors import StorageFault, UserError
from tidemill.storage.files.disk import Buffer, Disk

__all__ = [
    "DamagedFile",
    "decode_checked",
    "decode_versions",
    "encode_checked",
    "iter_blocks",
    "read_checked",
]

_MAGIC = b"TMCF"
_HEADER = Struct(">4s4sHHI")
_CRC = Struct(">I")
_OVERHEAD_BYTES = _HEADER.size + _CRC.size


class DamagedFile(StorageFault):
    """A small file is not what was written. Its owner rebuilds it, or stops."""


def encode_checked(kind: bytes, version: int, payload: Buffer) -> bytes:
    """The bytes to store; `kind` has four letters."""
    assert len(kind) == 4
    body = _HEADER.pack(_MAGIC, kind, version, 0, len(payload)) + payload
    return body + _CRC.pack(crc32c(body))


def decode_checked(data: Buffer, *, kind: bytes, version: int, name: str) -> memoryview:
    """The payload of a file that is one block. `name` appears in errors.

    Raises DamagedFile, and UserError if a newer Tidemill wrote the file.
    """
    return decode_versions(data, kind=kind, versions=(version,), name=name)[0]


def decode_versions(
    data: Buffer, *, kind: bytes, versions: Sequence[int], name: str
) -> tuple[memoryview, int]:
    """The same for a file of any of these versions, rising: the payload and its version."""
    view = memoryview(data)
    payload, size, version = _decode_block(view, kind=kind, versions=versions, name=name)
    if size != len(view):
        raise DamagedFile(f"{name}: {len(view) - size} bytes too many")
    return payload, version


def read_checked(disk: Disk, path: str, *, kind: bytes, version: int) -> memoryview:
    """The payload of a small file. Raises as `decode_checked`, and StorageFault."""
    return decode_checked(disk.read_file(path), kind=kind, version=version, name=path)


def iter_blocks(
    data: Buffer, *, kind: bytes, version: int, name: str
) -> Iterator[tuple[memoryview, int]]:
    """The whole blocks at the start of `data`: payload, and size with its frame."""
    view = memoryview(data)
    while len(view) > 0:
        try:
            payload, size, _ = _decode_block(view, kind=kind, versions=(version,), name=name)
        except DamagedFile:
            return
        yield payload, size
        view = view[size:]


def _decode_block(
    view: memoryview, *, kind: bytes, versions: Sequence[int], name: str
) -> tuple[memoryview, int, int]:
    if len(view) < _OVERHEAD_BYTES:
        raise DamagedFile(f"{name}: {len(view)} bytes are too few")
    magic, found_kind, found_version, _, length = _HEADER.unpack_from(view)
    if magic != _MAGIC or found_kind != kind:
        raise DamagedFile(f"{name}: not a {kind.decode()} file")
    if length > len(view) - _OVERHEAD_BYTES:
        raise DamagedFile(f"{name}: cut short")
    end = _HEADER.size + length
    (crc,) = _CRC.unpack_from(view, end)
    if crc != crc32c(view[:end]):
        raise DamagedFile(f"{name}: checksum does not match")
    if found_version not in versions:
        raise UserError(
            f"{name} has format version {found_version}, this Tidemill knows {versions[-1]}: "
            "start the version that wrote it"
        )
    return view[_HEADER.size : end], _OVERHEAD_BYTES + length, found_version
