"""The bounds of a run; what selectors mean is tested in `tests/unit/delivery/test_selectors.py`."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from tests.support.flavours import FLAVOURS, load
from tests.unit.delivery.compiled_selectors import PROGRAM
from tidemill.delivery.filter.program import compile_selector
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.records import Record, build_batch

SECTION = bytes(build_batch([Record(b"v", headers=[("a", b"x" * n)]) for n in range(4)]))
INT64_MAX = 2**63 - 1


@pytest.fixture(params=FLAVOURS)
def hot(request):
    return load(request.param, "header_match")


def run(
    hot,
    selector="a = 'x'",
    *,
    verdicts,
    data=SECTION,
    count=4,
    base=0,
    from_delta=0,
    work_max=1 << 40,
):
    with patch(PROGRAM, hot.Program):
        program = compile_selector(selector)
    start, end = HEADER_BYTES, len(data)
    return hot.match(
        program, data, start, end, 0, count, base, -1, 0, from_delta, work_max, verdicts
    )


def test_the_last_match_is_named(hot):
    verdicts = bytearray(4)
    assert run(hot, "a LIKE 'x%'", verdicts=verdicts)[2:] == (len(SECTION), 3, 3)
    assert verdicts == b"\0\1\1\1"


def test_records_before_the_first_offset_do_not_match(hot):
    verdicts = bytearray(4)
    assert run(hot, "TRUE", verdicts=verdicts, from_delta=2)[2:] == (len(SECTION), 2, 3)
    assert verdicts == b"\0\0\1\1"


def test_more_records_than_fit_are_refused(hot):
    with pytest.raises(ValueError, match="room"):
        run(hot, verdicts=bytearray(3))
    with pytest.raises(ValueError, match="room"):
        run(hot, verdicts=bytearray(9_999), count=hot.CHUNK_RECORDS + 1)


def test_S37_a_run_ends_when_its_work_is_used_up(hot):
    verdicts = bytearray(b"\7" * 4)
    looked, work, end, matched, last = run(hot, "a IS NOT NULL", verdicts=verdicts, work_max=1)
    assert (looked, matched, last) == (1, 1, 0)
    assert work == end - HEADER_BYTES < len(SECTION)
    assert verdicts == b"\1\7\7\7"


@pytest.mark.parametrize(
    "term", ["a LIKE '%x{}'", "a = b", "tag = 'x{}'", "tag LIKE '%x{}'", "routes('#.x{}')"]
)
def test_S37_each_term_that_looks_at_a_text_counts_as_work(hot, term):
    text = b"y" * 1_000
    names = ("a", "b", "tidemill.tags", "tidemill.routing-key")
    data = bytes(build_batch([Record(b"v", headers=[(name, text) for name in names])]))
    selector = " AND ".join(f"NOT ({term.format(n)})" for n in range(50))
    if term == "a = b":
        selector = selector.replace("NOT", "")
    _, work, *_ = run(hot, selector, verdicts=bytearray(1), data=data, count=1)
    assert work >= 50 * len(text)


def test_cut_records_are_refused(hot):
    with pytest.raises(ValueError, match="record 3"):
        run(hot, verdicts=bytearray(4), data=SECTION[:-1])


def test_a_time_beyond_64_bits_is_unknown(hot):
    late = bytes(build_batch([Record(b"v", timestamp=0), Record(b"v", timestamp=5)]))
    verdicts = bytearray(2)
    run(hot, "_timestamp <> 0", verdicts=verdicts, data=late, count=2, base=INT64_MAX)
    assert verdicts == b"\1\0"
