from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.records import Record, build_batch


def section_of(count):
    if count == 0:
        return b""
    made = build_batch([Record(b"v" * n, timestamp=1_000 - n) for n in range(count)])
    return bytes(made)[HEADER_BYTES:]


@pytest.mark.parametrize("flavour", FLAVOURS)
@given(chosen=st.lists(st.booleans(), min_size=1, max_size=40), cut=st.integers(0, 40))
def test_the_chosen_records_are_copied_byte_for_byte(flavour, chosen, cut):
    hot = load(flavour, "record_pick")
    count, cut = len(chosen), min(cut, len(chosen))
    section, out = section_of(count), bytearray(10_000)
    verdicts = bytearray(chosen)
    position, out_at, first = hot.pick(section, 0, len(section), 0, cut, verdicts, out, 0)
    position, out_at, second = hot.pick(
        section, position, len(section), cut, count - cut, verdicts, out, out_at
    )
    assert position == len(section)
    kept = [n for n in range(count) if chosen[n]]
    assert max((one for one in (first, second) if one is not None), default=None) == (
        -min(kept) if kept else None
    )
    record_bytes = [len(section_of(n + 1)) - len(section_of(n)) for n in range(count)]
    ends = [sum(record_bytes[: n + 1]) for n in range(count)]
    assert bytes(out[:out_at]) == b"".join(
        section[ends[n] - record_bytes[n] : ends[n]] for n in kept
    )


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_what_does_not_fit_is_refused(flavour):
    hot = load(flavour, "record_pick")
    section = section_of(3)
    with pytest.raises(ValueError, match="verdicts"):
        hot.pick(section, 0, len(section), 0, 3, bytearray(2), bytearray(100), 0)
    with pytest.raises(ValueError, match="outside"):
        hot.pick(section, 0, len(section), 0, 3, bytearray(b"\1\1\1"), bytearray(5), 0)
    with pytest.raises(ValueError, match="record"):
        hot.pick(section, 0, len(section) - 1, 0, 3, bytearray(b"\1\1\1"), bytearray(100), 0)


HIDING = ("command", "delay-ms", "deliver-at", "half", "only-group", "schedule")


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", HIDING)
def test_a_record_with_a_header_that_hides_it_is_not_seen(flavour, name):
    hot = load(flavour, "record_pick")
    records = [
        Record(b"a", timestamp=100),
        Record(b"b", timestamp=400, headers=[("x", None), (f"tidemill.{name}", b"1")]),
        Record(b"c", timestamp=300, headers=[("tidemill.tags", b"x"), (name, b"1")]),
        Record(b"d", timestamp=200, headers=[(f"tidemill.{name}s", b"1")]),
    ]
    section = bytes(build_batch(records))[HEADER_BYTES:]
    verdicts = bytearray(4)
    assert hot.judge(section, 0, len(section), 0, 4, 0, verdicts) == (len(section), 3, 3, 300)
    assert list(verdicts) == [1, 0, 1, 1]
    assert hot.judge(section, 0, len(section), 0, 4, 3, verdicts)[1:3] == (1, 3)
    assert list(verdicts) == [0, 0, 0, 1]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_records_without_verdicts_are_not_judged(flavour):
    hot = load(flavour, "record_pick")
    section = section_of(2)
    for first, count in ((0, 3), (1, 2), (0, 0), (-1, 1)):
        with pytest.raises(ValueError, match="record"):
            hot.judge(section, 0, len(section), first, count, 0, bytearray(2))
