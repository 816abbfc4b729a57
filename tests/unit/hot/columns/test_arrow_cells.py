from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load
from tests.unit.hot.columns.arrow_layout import binary_cells, list_cells

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)


def offsets(*numbers: int) -> memoryview:
    return memoryview(array("i", numbers))


@given(values=st.lists(st.none() | st.binary(max_size=9), max_size=20), data=st.data())
def test_cells_are_found_in_a_column_and_in_a_slice_of_it(flavour, values, data):
    first = data.draw(st.integers(0, len(values)))
    cells = binary_cells(load(flavour, "columns.arrow_cells").Cells, values, first)
    found = []
    for row in range(len(values) - first):
        size, start = cells.size(row), cells.start(row)
        found.append(None if size < 0 else bytes(cells.data[start : start + size]))
    assert found == values[first:]


def test_lists_say_how_many_children_they_have_and_where(flavour):
    cells = list_cells(load(flavour, "columns.arrow_cells").Cells, [2, -1, 0, 3])
    assert [cells.size(row) for row in range(4)] == [2, -1, 0, 3]
    assert cells.start(3) == 2


def test_without_a_bitmap_nothing_is_null(flavour):
    cells = load(flavour, "columns.arrow_cells").Cells(2, offsets(0, 0, 1), b"x")
    assert (cells.size(0), cells.size(1)) == (0, 1)


@pytest.mark.parametrize("lying", [(0, 9), (2, 1), (-1, 1)])
def test_a_cell_outside_its_column_is_refused(flavour, lying):
    cells = load(flavour, "columns.arrow_cells").Cells(1, offsets(*lying), b"abc")
    with pytest.raises(ValueError, match="outside its column"):
        cells.size(0)


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_outside_the_slice_is_refused(flavour, row):
    cells = load(flavour, "columns.arrow_cells").Cells(1, offsets(0, 1, 2), b"ab")
    with pytest.raises(ValueError, match="no such row"):
        cells.size(row)


@pytest.mark.parametrize(
    ("count", "first", "validity"),
    [(2, 0, None), (1, 1, None), (-1, 0, None), (1, -1, None), (1, 0, b"")],
)
def test_buffers_that_do_not_reach_the_last_row_are_refused(flavour, count, first, validity):
    with pytest.raises(ValueError, match=r"(do|does) not reach"):
        load(flavour, "columns.arrow_cells").Cells(count, offsets(0, 1), b"a", validity, first)
