"""The file format that the indexes of a segment share: checked blocks of columns.

Each block holds the entries added since the block before it, column after column. Inside the block
numbers are little-endian:

    size      field
    8         the segment's base offset
    4         index of the block's first entry
    4         number of entries, n
    n * item  the first column, then the next one
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct

from tidemill.storage.files.checked_file import encode_checked, iter_blocks
from tidemill.storage.files.disk import Buffer

__all__ = ["decode_blocks", "encode_block", "extend_columns", "pack_columns"]

_VERSION = 1
_BLOCK = Struct("<qII")


def encode_block(
    kind: bytes, columns: Sequence[array[int]], *, base_offset: int, first: int
) -> bytes:
    """A block with these entries, the first of which has index `first` in the segment's index."""
    packed = pack_columns(columns, base_offset=base_offset, first=first)
    return encode_checked(kind, _VERSION, packed)


def pack_columns(columns: Sequence[array[int]], *, base_offset: int, first: int) -> bytes:
    """The payload of such a block."""
    head = _BLOCK.pack(base_offset, first, len(columns[0]))
    return head + b"".join(map(_little_endian, columns))


def decode_blocks(
    data: Buffer, columns: Sequence[array[int]], *, kind: bytes, base_offset: int, name: str
) -> int:
    """Add the entries of all blocks that are whole and in sequence; the bytes that these take."""
    used_bytes = 0
    for payload, block_bytes in iter_blocks(data, kind=kind, version=_VERSION, name=name):
        if not extend_columns(columns, payload, base_offset):
            break
        used_bytes += block_bytes
    return used_bytes


def extend_columns(columns: Sequence[array[int]], payload: memoryview, base_offset: int) -> bool:
    """Add the entries of one payload; False if it does not continue these columns."""
    if len(payload) < _BLOCK.size:
        return False
    found_offset, first, count = _BLOCK.unpack_from(payload)
    body = payload[_BLOCK.size :]
    in_sequence = found_offset == base_offset and first == len(columns[0])
    if not in_sequence or len(body) != count * sum(column.itemsize for column in columns):
        return False
    for column in columns:
        column_bytes = count * column.itemsize
        column.extend(_from_little_endian(column.typecode, body[:column_bytes]))
        body = body[column_bytes:]
    return True


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _from_little_endian(typecode: str, data: memoryview) -> array[int]:
    numbers: array[int] = array(typecode)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
