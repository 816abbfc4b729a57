from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)

maybe_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.binary(max_size=8), maybe_bytes), max_size=3)
contents = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), maybe_bytes, maybe_bytes, headers), max_size=6
)


@settings(max_examples=40)
@given(contents=contents)
def test_encoded_records_walk_and_read_back(flavour, contents):
    rows = [(delta, *content) for delta, content in enumerate(contents)]
    section = bytes(load(flavour, "record_encode").encode(rows))
    walker = load(flavour, "record_walk")
    times = [row[1] for row in rows] or [0]
    keyless = sum(row[2] is None for row in rows)
    walked = walker.walk(section, 0, len(section), len(rows))
    assert walked[:3] == (min(times), max(times), keyless)
    assert walker.rows(section, 0, len(section), 0, len(rows)) == (len(section), rows)


@pytest.mark.parametrize("row", [(2**31, 0), (0, 2**63), (0, -(2**63) - 1)])
def test_a_delta_that_does_not_fit_is_refused(flavour, row):
    with pytest.raises(OverflowError):
        load(flavour, "record_encode").encode([(*row, None, None, [])])
