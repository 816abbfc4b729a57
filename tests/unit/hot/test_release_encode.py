"""Records are copied with all that they have, but for the headers that go."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load
from tidemill.hot import record_encode, record_walk

_fields = st.none() | st.binary(max_size=90)
_headers = st.lists(st.tuples(st.sampled_from([b"", b"a", b"two", b"t"]), _fields), max_size=4)
_rows = st.lists(
    st.tuples(st.integers(-(1 << 40), 1 << 40), _fields, _fields, _headers), min_size=1, max_size=6
)
DROPPED = frozenset({b"two"})
ADDED = b"\2x\4yz"


@pytest.mark.parametrize("flavour", FLAVOURS)
@given(rows=_rows, data=st.data())
def test_a_copied_record_keeps_key_value_and_the_other_headers(flavour, rows, data):
    hot = load(flavour, "release_encode")
    section = bytes(record_encode.encode([(n, *row) for n, row in enumerate(rows)]))
    wanted = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    found = array("q", bytes(72 * len(wanted)))
    highest = hot.find_records(section, len(rows), array("q", wanted), found)
    assert highest == max(row[0] for row in rows)
    out, end = bytearray(len(section) + len(wanted) * (hot.OVERHEAD_BYTES + len(ADDED))), 0
    for place in reversed(range(len(wanted))):
        delta = len(wanted) - 1 - place
        end = hot.put_record(out, end, section, found, place, delta, ADDED, 1, DROPPED)
    stop, copies = record_walk.rows(bytes(out[:end]), 0, end, 0, len(wanted))
    assert stop == end
    for delta, (copy, number) in enumerate(zip(copies, reversed(wanted), strict=True)):
        _, key, value, headers = rows[number]
        kept = [header for header in headers if header[0] not in DROPPED]
        assert copy == (delta, 0, key, value, [*kept, (b"x", b"yz")])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_what_is_missing_or_does_not_fit_is_refused(flavour):
    hot = load(flavour, "release_encode")
    section = bytes(record_encode.encode([(0, 0, b"key", b"value", [])]))
    found = array("q", bytes(72))
    with pytest.raises(ValueError, match="not where it was"):
        hot.find_records(section, 1, array("q", [1]), found)
    with pytest.raises(ValueError, match="too small"):
        hot.find_records(section, 1, array("q", [0, 1]), found)
    hot.find_records(section, 1, array("q", [0]), found)
    with pytest.raises(IndexError):
        hot.put_record(bytearray(5), 0, section, found, 0, 0, ADDED, 1, DROPPED)
