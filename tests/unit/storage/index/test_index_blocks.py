"""The blocks of an index file: columns are read back, and a foreign block ends the reading."""

from __future__ import annotations

from array import array

import pytest

from tidemill.storage.files.checked_file import encode_checked
from tidemill.storage.index.index_blocks import decode_blocks, encode_block

KIND = b"TEST"
BASE_OFFSET = 7


def decode(data: bytes) -> tuple[list[int], list[int], int]:
    """Both columns, and the bytes used."""
    narrow, wide = array("I"), array("q")
    used_bytes = decode_blocks(data, (narrow, wide), kind=KIND, base_offset=BASE_OFFSET, name="f")
    return list(narrow), list(wide), used_bytes


def block(*, base_offset: int = BASE_OFFSET, first: int = 0) -> bytes:
    columns = (array("I", [1, 2]), array("q", [-1, 1 << 40]))
    return encode_block(KIND, columns, base_offset=base_offset, first=first)


def test_columns_of_different_widths_are_read_back():
    data = block() + block(first=2)
    assert decode(data) == ([1, 2, 1, 2], [-1, 1 << 40, -1, 1 << 40], len(data))


@pytest.mark.parametrize(
    "foreign",
    [
        block(base_offset=8, first=2),
        block(first=1),
        encode_checked(KIND, 1, b"too short"),
        encode_checked(KIND, 1, (7).to_bytes(8, "little") + b"\x02\0\0\0\x01\0\0\0" + b"\0" * 11),
    ],
    ids=["another segment", "out of sequence", "no head", "not whole entries"],
)
def test_R10_a_block_that_does_not_continue_the_columns_ends_the_reading(foreign):
    assert decode(block() + foreign) == ([1, 2], [-1, 1 << 40], len(block()))
