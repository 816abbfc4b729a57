from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)

maybe_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.binary(max_size=4), maybe_bytes), max_size=3)
batches = st.lists(
    st.lists(st.tuples(st.integers(-1000, 1000), maybe_bytes, maybe_bytes, headers), max_size=12),
    max_size=3,
)


def section_of(contents) -> bytes:
    rows = [(delta, *content) for delta, content in enumerate(contents)]
    return bytes(load("pure", "record_encode").encode(rows))


def append(module: ModuleType, columns, section: bytes, count: int, **options) -> tuple[int, int]:
    options = {"base_offset": 0, "base_timestamp": 0} | options
    reached: tuple[int, int] = module.append(columns, section, 0, len(section), count, **options)
    return reached


def rows_of(columns) -> list[tuple[object, ...]]:
    return [
        (
            columns.offsets[row],
            columns.timestamps_us[row],
            columns.keys.value(row),
            columns.values.value(row),
            columns.headers.value(row),
        )
        for row in range(columns.row_count)
    ]


@settings(max_examples=25)
@given(batches=batches)
def test_columns_hold_what_many_batches_hold(flavour, batches):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns()
    expected = []
    for number, contents in enumerate(batches):
        section, base = section_of(contents), number * 100
        reached = append(
            module, columns, section, len(contents), base_offset=base, base_timestamp=7
        )
        assert reached == (len(section), len(contents))
        expected += [
            (base + delta, (7 + time) * 1000, key, value, headers or None)
            for delta, (time, key, value, headers) in enumerate(contents)
        ]
    assert rows_of(columns) == expected
    assert columns.keys.null_count == sum(row[2] is None for row in expected)
    assert columns.headers.null_count == sum(row[4] is None for row in expected)


def test_columns_cover_more_records_than_one_chunk(flavour):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns()
    contents = [(i, None, b"%d" % i, []) for i in range(1100)]
    append(module, columns, section_of(contents), 1100)
    assert [columns.values.value(i) for i in (0, 511, 512, 1099)] == [b"0", b"511", b"512", b"1099"]
    assert columns.size_bytes == sum(16 + len(content[2]) for content in contents)


def test_records_outside_the_asked_offsets_are_left_out(flavour):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns()
    contents = [(0, b"k", b"%d" % i, [(b"h", b"%d" % i)]) for i in range(10)]
    section = section_of(contents)
    append(module, columns, section, 10, base_offset=50, low=53, high=56)
    assert [row[0] for row in rows_of(columns)] == [53, 54, 55]
    assert [row[3] for row in rows_of(columns)] == [b"3", b"4", b"5"]
    assert [row[4] for row in rows_of(columns)] == [[(b"h", b"%d" % i)] for i in (3, 4, 5)]


def test_unwanted_columns_are_not_created(flavour):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns(keys=False, values=False, headers=False)
    append(module, columns, section_of([(0, b"key", b"value", [(b"h", b"x")])]), 1)
    assert (columns.keys, columns.values, columns.headers) == (None, None, None)
    assert columns.size_bytes == 16


def test_full_columns_stop_and_new_ones_continue_where_they_stopped(flavour):
    # Given a section of three chunks
    module = load(flavour, "columns.record_columns")
    contents = [(i, None, b"%04d" % i, []) for i in range(1300)]
    section = section_of(contents)

    # When each set of columns may hold only a little
    values, start, done = [], 0, 0
    while done < 1300:
        columns = module.RecordColumns()
        start, done = module.append(
            columns,
            section,
            start,
            len(section),
            1300,
            base_offset=0,
            base_timestamp=0,
            first=done,
            bytes_max=1000,
        )
        assert 0 < columns.row_count <= 512
        values += [columns.values.value(row) for row in range(columns.row_count)]

    # Then nothing is lost and nothing comes twice
    assert values == [content[2] for content in contents]


def test_large_records_are_taken_few_at_a_time(flavour):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns()
    contents = [(0, None, bytes(100_000), []) for _ in range(40)]
    section = section_of(contents)
    append(module, columns, section, 40, bytes_max=1_000_000)
    assert 10 <= columns.row_count <= 13


def test_headers_count_though_they_are_empty(flavour):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns()
    section = section_of([(0, None, None, [(b"", None)] * 300_000)] * 4)
    _, done = append(module, columns, section, 4, bytes_max=1 << 20)
    assert done == 1


def test_an_append_time_replaces_every_timestamp(flavour):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns()
    contents = [(5, None, None, []), (2**62, None, None, [])]
    append(module, columns, section_of(contents), 2, append_time=1234)
    assert list(columns.timestamps_us[:2]) == [1_234_000, 1_234_000]


@pytest.mark.parametrize(
    ("time", "base"), [(2**52 + 1, 0), (-(2**63), 0), (0, 2**53), (0, -(2**63))]
)
def test_a_timestamp_beyond_64_bits_of_microseconds_is_refused(flavour, time, base):
    module = load(flavour, "columns.record_columns")
    section = section_of([(time, None, None, [])])
    with pytest.raises(ValueError, match="64 bits"):
        append(module, module.RecordColumns(), section, 1, base_timestamp=base)


def test_a_damaged_section_leaves_the_columns_as_they_were(flavour):
    module = load(flavour, "columns.record_columns")
    columns = module.RecordColumns()
    append(module, columns, section_of([(0, b"k", b"v", [(b"h", b"x")])]), 1)
    before = rows_of(columns)
    damaged = bytearray(section_of([(0, b"k", b"v", []), (1, b"k", b"v", [])]))
    damaged[-1] = 77
    with pytest.raises(ValueError, match="record 1"):
        append(module, columns, bytes(damaged), 2)
    assert rows_of(columns) == before


def test_bytes_after_the_records_are_refused(flavour):
    module = load(flavour, "columns.record_columns")
    section = section_of([(0, None, None, [])])
    with pytest.raises(ValueError, match="after the last"):
        append(module, module.RecordColumns(), section + b"\x00", 1)


@pytest.mark.parametrize("base_offset", [-1, 2**63 - 1])
def test_a_base_offset_beyond_64_bits_is_refused(flavour, base_offset):
    module = load(flavour, "columns.record_columns")
    with pytest.raises(ValueError, match="base offset"):
        append(module, module.RecordColumns(), b"", 0, base_offset=base_offset)
