from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load
from tests.unit.hot.columns.arrow_layout import binary_cells
from tidemill.client.producing.partitioners import KeyPartitioner, RoundRobin

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)


def undecided(count: int) -> array[int]:
    return array("i", [-1]) * count


def column(flavour: str, values: list[bytes | None]):
    return binary_cells(load(flavour, "columns.arrow_cells").Cells, values)


@given(keys=st.lists(st.binary(max_size=40), max_size=30), count=st.integers(1, 1000))
def test_keys_go_where_the_client_puts_them(flavour, keys, count):
    partitions = undecided(len(keys))
    load(flavour, "columns.row_partitions").by_key(partitions, column(flavour, keys), count)
    partitioner = KeyPartitioner(RoundRobin())
    assert list(partitions) == [partitioner.partition(key, count) for key in keys]


def test_rows_without_a_key_and_rows_that_are_decided_stay_as_they_are(flavour):
    partitions = array("i", [-1, 5, -1])
    keys = column(flavour, [None, b"foobar", b"foobar"])
    load(flavour, "columns.row_partitions").by_key(partitions, keys, 3)
    assert partitions[0] == -1
    assert partitions[1] == 5
    assert 0 <= partitions[2] < 3


def test_undecided_rows_stay_together_until_a_batch_is_full(flavour):
    partitions = undecided(7)
    values = column(flavour, [b"x" * 10] * 7)
    after = load(flavour, "columns.row_partitions").spread(partitions, values, 3, 1, 0, 20)
    assert list(partitions) == [1, 1, 2, 2, 0, 0, 1]
    assert after == (1, 10)


def test_spreading_continues_where_the_last_chunk_ended(flavour):
    partitions = array("i", [-1, 0, -1])
    values = column(flavour, [b"x" * 10, b"decided", None])
    after = load(flavour, "columns.row_partitions").spread(partitions, values, 3, 2, 15, 20)
    assert list(partitions) == [2, 0, 0]
    assert after == (0, 0)


@given(data=st.data(), count=st.integers(1, 9))
def test_rows_are_grouped_by_partition_and_keep_their_order(flavour, data, count):
    partitions = data.draw(st.lists(st.integers(0, count - 1), max_size=40))
    order, starts = load(flavour, "columns.row_partitions").grouped(array("i", partitions), count)
    expected = sorted(range(len(partitions)), key=lambda row: partitions[row])
    assert list(order) == expected
    assert list(starts) == [sum(p < part for p in partitions) for part in range(count + 1)]


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_row_whose_partition_does_not_exist_is_refused(flavour, partition):
    with pytest.raises(ValueError, match="row 1 has no partition"):
        load(flavour, "columns.row_partitions").grouped(array("i", [0, partition]), 3)


def test_a_column_of_another_length_is_refused(flavour):
    module = load(flavour, "columns.row_partitions")
    with pytest.raises(ValueError, match="for each row"):
        module.by_key(undecided(2), column(flavour, [b"k"]), 3)
    with pytest.raises(ValueError, match="for each row"):
        module.spread(undecided(2), column(flavour, [b"k"]), 3, 0, 0, 9)


def test_a_topic_without_partitions_is_refused(flavour):
    module = load(flavour, "columns.row_partitions")
    with pytest.raises(ValueError, match="one partition at least"):
        module.by_key(undecided(1), column(flavour, [b"k"]), 0)
    with pytest.raises(ValueError, match="one partition at least"):
        module.spread(undecided(1), column(flavour, [b"k"]), 0, 0, 0, 9)
