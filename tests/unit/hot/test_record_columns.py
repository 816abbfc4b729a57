from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hot.flavours import FLAVOURS, load

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)

maybe_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.binary(max_size=4), maybe_bytes), max_size=2)
batches = st.lists(
    st.lists(st.tuples(st.integers(-1000, 1000), maybe_bytes, maybe_bytes, headers), max_size=12),
    max_size=3,
)


def section_of(contents) -> bytes:
    rows = [(delta, *content) for delta, content in enumerate(contents)]
    return bytes(load("pure", "record_encode").encode(rows))


def append(module: ModuleType, columns, section: bytes, count: int, **options) -> int:
    options = {"base_offset": 0, "base_timestamp": 0} | options
    added: int = module.append(columns, section, 0, len(section), count, **options)
    return added


@settings(max_examples=25)
@given(batches=batches)
def test_columns_hold_what_many_batches_hold(flavour, batches):
    module = load(flavour, "record_columns")
    columns = module.RecordColumns()
    expected = []
    for number, contents in enumerate(batches):
        added = append(
            module,
            columns,
            section_of(contents),
            len(contents),
            base_offset=number * 100,
            base_timestamp=7,
        )
        assert added == len(contents)
        expected += [
            (number * 100 + delta, 7 + time, key, value, len(headers))
            for delta, (time, key, value, headers) in enumerate(contents)
        ]
    assert rows_of(columns) == expected
    assert columns.keys.null_count == sum(row[2] is None for row in expected)


def rows_of(columns) -> list[tuple[object, ...]]:
    return [
        (
            columns.offsets[row],
            columns.timestamps[row],
            columns.keys.value(row),
            columns.values.value(row),
            columns.header_counts[row],
        )
        for row in range(columns.row_count)
    ]


def test_columns_cover_more_records_than_one_chunk(flavour):
    module = load(flavour, "record_columns")
    columns = module.RecordColumns()
    contents = [(i, None, b"%d" % i, []) for i in range(1100)]
    append(module, columns, section_of(contents), 1100)
    assert [columns.values.value(i) for i in (0, 511, 512, 1099)] == [b"0", b"511", b"512", b"1099"]
    assert columns.data_bytes == sum(len(content[2]) for content in contents)


def test_records_outside_the_asked_offsets_are_left_out(flavour):
    module = load(flavour, "record_columns")
    columns = module.RecordColumns()
    contents = [(0, None, b"%d" % i, []) for i in range(10)]
    section = section_of(contents)
    assert append(module, columns, section, 10, base_offset=50, low=53, high=56) == 3
    assert list(columns.offsets) == [53, 54, 55]
    assert [columns.values.value(i) for i in range(3)] == [b"3", b"4", b"5"]


def test_an_append_time_replaces_every_timestamp(flavour):
    module = load(flavour, "record_columns")
    columns = module.RecordColumns()
    contents = [(5, None, None, []), (9, None, None, [])]
    append(module, columns, section_of(contents), 2, append_time=1234)
    assert list(columns.timestamps) == [1234, 1234]


def test_raw_headers_can_be_opened(flavour):
    module = load(flavour, "record_columns")
    columns = module.RecordColumns()
    headers = [(b"a", b"1"), (b"b", None)]
    append(module, columns, section_of([(0, None, None, headers)]), 1)
    raw = columns.headers.value(0)
    assert load(flavour, "record_walk").read_headers(raw, 0, len(raw), 2) == headers


@pytest.mark.parametrize(
    ("time", "base"), [(10, 2**63 - 1), (2**63 - 1, 1), (-10, -(2**63) + 5), (-(2**63), -1)]
)
def test_a_timestamp_beyond_64_bits_is_refused(flavour, time, base):
    module = load(flavour, "record_columns")
    section = section_of([(time, None, None, [])])
    with pytest.raises(ValueError, match="64 bits"):
        append(module, module.RecordColumns(), section, 1, base_timestamp=base)


def test_bytes_after_the_records_are_refused(flavour):
    module = load(flavour, "record_columns")
    section = section_of([(0, None, None, [])])
    with pytest.raises(ValueError, match="after the last"):
        append(module, module.RecordColumns(), section + b"\x00", 1)


@pytest.mark.parametrize("base_offset", [-1, 2**63 - 1])
def test_a_base_offset_beyond_64_bits_is_refused(flavour, base_offset):
    module = load(flavour, "record_columns")
    with pytest.raises(ValueError, match="base offset"):
        append(module, module.RecordColumns(), b"", 0, base_offset=base_offset)
