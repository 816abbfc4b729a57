from __future__ import annotations

import pytest

from tidemill.storage.index.offset_index import OffsetIndex

BASE = 1_000


@pytest.fixture
def index() -> OffsetIndex:
    index = OffsetIndex(BASE)
    for offset, position in ((1_010, 500), (1_020, 900), (1_050, 2_000)):
        index.add(offset, position)
    return index


@pytest.mark.parametrize(
    ("offset", "position"),
    [
        (1_000, 0),
        (1_009, 0),
        (1_010, 500),
        (1_019, 500),
        (1_049, 900),
        (1_050, 2_000),
        (9_999, 2_000),
    ],
)
def test_reading_begins_at_the_last_entry_at_or_before_the_offset(index, offset, position):
    assert index.position_before(offset) == position


@pytest.mark.parametrize(
    ("position", "entry"), [(0, -1), (499, -1), (500, 0), (901, 1), (9_999, 2)]
)
def test_an_entry_is_found_by_its_position(index, position, entry):
    assert index.entry_at_position(position) == entry


def decode(data: bytes, base_offset: int = BASE) -> tuple[OffsetIndex, int]:
    return OffsetIndex.decode(data, base_offset=base_offset, name="i")


def test_blocks_that_were_appended_are_read_as_one_index(index):
    first = index.encode_from(0)
    index.add(1_060, 3_000)
    index.add(1_070, 3_500)
    data = first + index.encode_from(3)
    found, used_bytes = decode(data)
    assert used_bytes == len(data)
    assert (found.offsets, found.positions) == (index.offsets, index.positions)


def test_R10_reading_stops_at_the_first_block_that_does_not_belong(index):
    block = index.encode_from(0)
    assert len(decode(block + block)[0]) == 3
    assert len(decode(block + b"\0" * 50)[0]) == 3
    assert len(decode(b"\0" + block)[0]) == 0
    assert len(decode(block, base_offset=7)[0]) == 0
    assert decode(block + block)[1] == len(block)


def test_offsets_may_be_far_from_the_base():
    index = OffsetIndex(2**60)
    index.add(2**60 + 2**31, 2**31)
    assert index.position_before(2**60 + 2**31) == 2**31


def test_the_head_of_an_index_is_a_copy(index):
    head = index.head(1)
    head.add(1_015, 700)
    assert head.position_before(9_999) == 700
    assert index.position_before(1_019) == 500
