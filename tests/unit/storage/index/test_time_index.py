from __future__ import annotations

import pytest

from tidemill.storage.index.time_index import TimeIndex


@pytest.fixture
def index() -> TimeIndex:
    index = TimeIndex(0)
    for timestamp in (10, 10, 30, 50):
        index.add(timestamp)
    return index


@pytest.mark.parametrize(
    ("timestamp", "entry"), [(5, -1), (10, -1), (11, 1), (30, 1), (31, 2), (50, 2), (51, 3)]
)
def test_the_search_begins_at_the_last_entry_below_the_time(index, timestamp, entry):
    assert index.entry_before(timestamp) == entry


def decode(data: bytes) -> tuple[TimeIndex, int]:
    return TimeIndex.decode(data, base_offset=0, name="t")


def test_blocks_that_were_appended_are_read_as_one_index(index):
    first = index.encode_from(0)
    index.add(2**62)
    data = first + index.encode_from(4)
    found, used_bytes = decode(data)
    assert used_bytes == len(data)
    assert found.timestamps == index.timestamps


def test_R10_reading_stops_at_the_first_block_that_does_not_belong(index):
    block = index.encode_from(0)
    assert len(decode(block + block)[0]) == 4
    assert len(decode(block[:-1])[0]) == 0


def test_the_head_of_an_index_is_a_copy(index):
    head = index.head(2)
    head.add(20)
    assert list(head.timestamps) == [10, 10, 20]
    assert list(index.timestamps) == [10, 10, 30, 50]
