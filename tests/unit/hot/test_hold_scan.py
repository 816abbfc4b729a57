"""A scan says about each record what its headers say, one by one."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.records import Record, build_batch

PLAIN, DELAY, DATE, TICKET, OTHER = range(5)
DATA_NAMES = ("due", "priority", "routing-key", "sent-at", "tags", "ticket")
OTHER_NAMES = ("axis", "command", "half", "next", "schedule", "ttl-ms", "messagesid", "delay-mz")
_names = st.sampled_from(
    [f"tidemill.{one}" for one in ("delay-ms", "deliver-at", "message-id", *DATA_NAMES)]
    + [f"tidemill.{one}" for one in OTHER_NAMES]
    + ["", "own", "tidemill", "tidemill.", "tidemilk.delay-ms"]
)
_values = st.none() | st.sampled_from(
    [b"", b"7", b"0012", b"9" * 18, b"1" * 19, b"-5", b"4x", b"i" * 255, b"i" * 256]
)
_records = st.lists(st.lists(st.tuples(_names, _values), max_size=4), min_size=1, max_size=6)


def section_of(records):
    return bytes(build_batch([Record(b"v", headers=one) for one in records]))[HEADER_BYTES:]


def number(value):
    return int(value) if value is not None and value.isdigit() and len(value) <= 18 else None


def requested(headers):
    """Kind, number and id of a client's record."""
    kind, found, message_id = PLAIN, 0, None
    for name, value in headers:
        own = name.removeprefix("tidemill.") if name.startswith("tidemill.") else ""
        if own in ("", *DATA_NAMES):
            continue
        if own == "message-id" and message_id is None and 0 < len(value or b"") <= 255:
            message_id = value
            continue
        if own not in ("delay-ms", "deliver-at") or kind != PLAIN or number(value) is None:
            return OTHER, None, None
        kind, found = (DELAY if own == "delay-ms" else DATE), number(value)
    return kind, found if kind else None, message_id


def ended(headers):
    kind, found = PLAIN, None
    for name, value in headers:
        if name == "tidemill.next":
            return OTHER, None
        if name == "tidemill.ticket":
            if kind != PLAIN or number(value) is None:
                return OTHER, None
            kind, found = TICKET, number(value)
    return kind, found


@pytest.mark.parametrize("flavour", FLAVOURS)
@given(records=_records)
def test_requests_are_those_of_the_headers(flavour, records):
    hot = load(flavour, "hold_scan")
    section, table = section_of(records), array("q", bytes(72 * len(records)))
    end, others = hot.scan_requests(section, 0, len(section), 0, len(records), table)
    assert end == len(section)
    assert sum(table[hot.SIZE :: 9]) == len(section)
    found = []
    for row in range(len(records)):
        kind, value = table[row * 9 + hot.KIND], table[row * 9 + hot.NUMBER]
        at, size = table[row * 9 + hot.ID_AT], table[row * 9 + hot.ID_BYTES]
        message_id = section[at : at + size] if size >= 0 and kind != OTHER else None
        found.append((kind, value if kind in (DELAY, DATE) else None, message_id))
    assert found == [requested(one) for one in records]
    kinds = [kind for kind, _, _ in found]
    assert others == kinds.count(OTHER)
    assert hot.count_others(section, 0, len(section), len(records), 99) == others
    delays = [value for kind, value, _ in found if kind == DELAY]
    assert hot.highest_number(table, len(records), DELAY) == max(delays, default=-1)


@pytest.mark.parametrize("flavour", FLAVOURS)
@given(records=_records)
def test_tickets_are_those_of_the_headers(flavour, records):
    hot = load(flavour, "hold_scan")
    section, table = section_of(records), array("q", bytes(72 * len(records)))
    assert hot.scan_tickets(section, 0, len(section), 0, len(records), table) == len(section)
    rows = range(0, len(table), 9)
    found = [(table[at + hot.KIND], table[at + hot.NUMBER]) for at in rows]
    assert [(kind, value if kind == TICKET else None) for kind, value in found] == [
        ended(one) for one in records
    ]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_stretch_ends_where_another_kind_begins(flavour):
    hot = load(flavour, "hold_scan")
    names = ["delay-ms", "x", "delay-ms", "deliver-at", "half"]
    records = [[(f"tidemill.{name}" if name != "x" else name, b"5")] for name in names]
    section, table = section_of(records), array("q", bytes(72 * 5))
    hot.scan_requests(section, 0, len(section), 0, 5, table)
    columns = array("q", bytes(24 * 5))
    sizes = table[hot.SIZE :: 9]
    row, taken, size_bytes, kind, rising = hot.take_stretch(table, 0, 5, 100, 1_000, columns)
    assert (row, taken, size_bytes, kind, rising) == (3, 2, sizes[0] + sizes[2], DELAY, True)
    assert list(columns[:2]) == [100, 102]
    assert list(columns[5:7]) == [1_005, 1_005]
    assert hot.take_stretch(table, 3, 5, 100, 1_000, columns)[:2] == (4, 1)
    assert columns[5] == 5
    assert hot.take_stretch(table, 4, 5, 100, 1_000, columns)[:2] == (4, 0)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_due_time_beyond_all_numbers_is_never(flavour):
    hot = load(flavour, "hold_scan")
    section, table = section_of([[("tidemill.delay-ms", b"9" * 18)]]), array("q", bytes(72))
    hot.scan_requests(section, 0, len(section), 0, 1, table)
    columns = array("q", bytes(24))
    hot.take_stretch(table, 0, 1, 0, 2**63 - 1, columns)
    assert columns[1] == 2**63 - 1


@pytest.mark.parametrize("flavour", FLAVOURS)
@given(numbers=st.lists(st.integers(-3, 3), max_size=5))
def test_rising_is_what_sorting_leaves_alone(flavour, numbers):
    hot = load(flavour, "hold_scan")
    assert hot.is_rising(array("q", numbers)) == (numbers == sorted(numbers))
