"""Runs selectors over records with either flavour of the hot loop."""

from __future__ import annotations

from unittest.mock import patch

from tests.support import flavours
from tests.unit.delivery.selector_oracle import Facts
from tidemill.delivery.filter.program import compile_selector
from tidemill.wire.batch import HEADER_BYTES, read_header
from tidemill.wire.records import Record, build_batch

PROGRAM = "tidemill.delivery.filter.program.Program"


def matches(flavour: str, selector: str, records: list[Facts]) -> list[bool]:
    """Which of the records match; all have the partition of the first."""
    hot = flavours.load(flavour, "header_match")
    with patch(PROGRAM, hot.Program):
        program = compile_selector(selector)
    rows = [
        Record(key=one.key, value=b"v", timestamp=one.timestamp, headers=list(one.headers))
        for one in records
    ]
    data = memoryview(build_batch(rows))
    header = read_header(data)
    verdicts = bytearray(len(rows))
    looked, work, end, matched, last = hot.match(
        program,
        data,
        HEADER_BYTES,
        len(data),
        0,
        len(rows),
        header.base_timestamp,
        -1,
        records[0].partition,
        0,
        1 << 62,
        verdicts,
    )
    assert looked == len(rows)
    assert work >= len(data) - HEADER_BYTES
    assert end == len(data)
    assert matched == sum(verdicts)
    assert last == max((place for place, verdict in enumerate(verdicts) if verdict), default=-1)
    return [bool(verdict) for verdict in verdicts]
