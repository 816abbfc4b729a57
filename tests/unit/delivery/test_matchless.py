"""Ranges without a match: what is jumped over, and what is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.delivery.matchless import MatchlessCache, MatchlessRanges

OFFSETS = st.integers(0, 60)


@given(st.lists(st.tuples(OFFSETS, st.integers(1, 12))))
def test_ranges_are_the_union_of_what_was_added(added):
    ranges, known = MatchlessRanges(), set()
    for start, size in added:
        ranges.add(start, start + size)
        known.update(range(start, start + size))
    for offset in range(80):
        expected = offset
        while expected in known:
            expected += 1
        assert ranges.end_from(offset) == expected
    gaps = sum(1 for offset in known if offset - 1 not in known)
    assert len(ranges) == gaps


def test_the_ranges_that_nobody_used_for_longest_go_first():
    cache = MatchlessCache(ranges_max=4)
    cache.add("a", 0, 10)
    cache.add("b", 0, 10)
    assert cache.ranges("a").end_from(0) == 10
    cache.add("c", 0, 10)
    assert cache.ranges("b").end_from(0) == 0
    assert cache.ranges("a").end_from(0) == 10
    assert cache.ranges("c").end_from(0) == 10


def test_one_view_with_more_ranges_than_all_may_have_is_forgotten():
    cache = MatchlessCache(ranges_max=3)
    for start in range(0, 100, 10):
        cache.add("a", start, start + 1)
    assert len(cache.ranges("a")) <= 2
