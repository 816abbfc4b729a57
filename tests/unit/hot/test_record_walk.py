"""The records are built by hand, byte by byte, so that every field can be wrong."""

from __future__ import annotations

import pytest

from tests.support.flavours import FLAVOURS, load

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)


def vi(value: int) -> bytes:
    varint = load("pure", "varint")
    out = bytearray(varint.size(value))
    varint.write(out, 0, value)
    return bytes(out)


def field(data: bytes | None) -> bytes:
    return vi(-1) if data is None else vi(len(data)) + data


def body(
    offset_delta: int, *, time: int = 0, key: bytes | None = None, value: bytes | None = b"v"
) -> bytes:
    return b"\x00" + vi(time) + vi(offset_delta) + field(key) + field(value)


def record(content: bytes, headers: bytes = b"\x00") -> bytes:
    return vi(len(content) + len(headers)) + content + headers


def walk(flavour: str, section: bytes, count: int) -> tuple[int, int, int, int]:
    result: tuple[int, int, int, int] = load(flavour, "record_walk").walk(
        section, 0, len(section), count
    )
    return result


def test_a_walk_returns_time_range_and_number_of_keyless_records(flavour):
    section = (
        record(body(0, time=5))
        + record(body(1, time=-3, key=b"k"))
        + record(body(2, time=1, key=b""), vi(1) + field(b"h") + field(None))
    )
    assert walk(flavour, section, 3) == (-3, 5, 1, 0)


def test_extreme_times_survive(flavour):
    section = record(body(0, time=-(2**63))) + record(body(1, time=2**63 - 1))
    assert walk(flavour, section, 2) == (-(2**63), 2**63 - 1, 2, 0)


def test_only_very_low_times_have_a_low_maximum(flavour):
    assert walk(flavour, record(body(0, time=-(2**63))), 1) == (-(2**63), -(2**63), 1, 0)


def test_a_walk_reads_only_its_range(flavour):
    inside = record(body(0))
    buf = memoryview(b"\xff\xff" + inside + b"\xff")
    assert load(flavour, "record_walk").walk(buf, 2, 2 + len(inside), 1) == (0, 0, 1, 0)


DAMAGED = {
    "offset delta skips": (record(body(1)), 1, "offset delta"),
    "negative offset delta": (record(body(-1)), 1, "offset delta"),
    "fewer records than counted": (record(body(0)), 2, "length"),
    "more records than counted": (record(body(0)) + record(body(1)), 1, "after the last"),
    "length of zero": (vi(0) * 8, 1, "length"),
    "negative length": (vi(-5) + body(0) + vi(0), 1, "length"),
    "length beyond the section": (vi(100) + body(0) + vi(0), 1, "length"),
    "length of 2^31-1": (vi(2**31 - 1) + body(0), 1, "length"),
    "length beyond 32 bits": (vi(2**40) + body(0), 1, "length"),
    "record longer than its fields": (record(body(0), b"\x00\x00"), 1, "match"),
    "key of -2": (record(b"\x00\x00\x00" + vi(-2) + b"\x01\x00"), 1, "key"),
    "key beyond the record": (record(b"\x00\x00\x00" + vi(50) + b"k"), 1, "key"),
    "value of -2": (record(b"\x00\x00\x00\x01" + vi(-2)), 1, "value"),
    "value beyond the record": (record(b"\x00\x00\x00\x01" + vi(50)), 1, "value"),
    "negative header count": (record(body(0), vi(-1)), 1, "header count"),
    "header count beyond the record": (record(body(0), vi(9)), 1, "header count"),
    "header count of 2^31-1": (record(body(0), vi(2**31 - 1)), 1, "header count"),
    "null header key": (record(body(0), vi(1) + vi(-1) + vi(-1)), 1, "header key"),
    "header key beyond the record": (record(body(0), vi(1) + vi(40)), 1, "header key"),
    "header value of -2": (record(body(0), vi(1) + field(b"h") + vi(-2)), 1, "header value"),
    "header value beyond": (record(body(0), vi(1) + field(b"h") + vi(9)), 1, "header value"),
    "varint without end": (record(b"\x00" + b"\x80" * 11), 1, "varint"),
    "time of 11 bytes": (record(b"\x00" + b"\x80" * 10 + b"\x00" * 5), 1, "varint"),
    "key length beyond 32 bits": (record(b"\x00\x00\x00" + vi(2**33)), 1, "varint"),
    "empty record": (record(b"\x00", b""), 1, "varint"),
    "count of -1": (record(body(0)), -1, "count"),
    "count beyond the bytes": (record(body(0)), 2**31 - 1, "count"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_S23_an_inconsistent_record_is_refused(flavour, case):
    section, count, message = DAMAGED[case]
    with pytest.raises(ValueError, match=message):
        walk(flavour, section, count)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 10**9), (-(2**40), -1)])
def test_a_range_outside_the_buffer_is_refused(flavour, start, end):
    module = load(flavour, "record_walk")
    section = record(body(0))
    with pytest.raises(ValueError, match="range"):
        module.walk(section, start, end, 1)
    with pytest.raises(ValueError, match="range"):
        module.rows(section, start, end, 0, 1)
    with pytest.raises(ValueError, match="range"):
        module.find_time(section, start, end, 1, 0, 0)


def test_T39_the_first_record_at_or_after_a_time_is_found(flavour):
    section = b"".join(record(body(i, time=t)) for i, t in enumerate([0, 50, 20, 90]))
    find = load(flavour, "record_walk").find_time
    assert find(section, 0, len(section), 4, 1000, 1010) == (1, 1050)
    assert find(section, 0, len(section), 4, 1000, 900) == (0, 1000)
    assert find(section, 0, len(section), 4, 1000, 1090) == (3, 1090)
    assert find(section, 0, len(section), 4, 1000, 1091) is None


def test_T39_a_time_is_found_after_the_first_chunk(flavour):
    section = b"".join(record(body(i, time=i)) for i in range(1200))
    find = load(flavour, "record_walk").find_time
    assert find(section, 0, len(section), 1200, 0, 1100) == (1100, 1100)


def test_T39_a_time_beyond_64_bits_does_not_wrap(flavour):
    section = record(body(0, time=10))
    find = load(flavour, "record_walk").find_time
    assert find(section, 0, len(section), 1, 2**63 - 1, -5) == (0, 2**63 + 9)
    assert find(section, 0, len(section), 1, -(2**63), 2**63 - 1) is None


def test_rows_hold_what_the_records_hold(flavour):
    headers = vi(2) + field(b"a") + field(b"1") + field(b"") + field(None)
    section = record(body(0, time=7, key=b"k")) + record(body(4, value=None), headers)
    stop, rows = load(flavour, "record_walk").rows(section, 0, len(section), 0, 2)
    assert stop == len(section)
    assert rows == [(0, 7, b"k", b"v", []), (4, 0, None, None, [(b"a", b"1"), (b"", None)])]


def test_rows_refuse_offsets_that_go_back(flavour):
    section = record(body(4)) + record(body(4))
    with pytest.raises(ValueError, match="does not increase"):
        load(flavour, "record_walk").rows(section, 0, len(section), 0, 2)


def test_an_index_refuses_a_table_that_is_too_small(flavour):
    section = record(body(0)) + record(body(1))
    table = memoryview(bytearray(8 * 9)).cast("q")
    with pytest.raises(ValueError, match="table"):
        load(flavour, "record_walk").index(section, 0, len(section), 0, 2, table)


def test_T25_keyless_records_are_named_up_to_the_limit(flavour):
    keys = [None, b"k", None, b"", None]
    section = b"".join(record(body(i, key=key)) for i, key in enumerate(keys))
    keyless = load(flavour, "record_walk").keyless
    assert keyless(section, 0, len(section), 5, 100) == [0, 2, 4]
    assert keyless(section, 0, len(section), 5, 2) == [0, 2]


def test_S24_records_outside_a_time_range_are_named_and_unset_times_are_not(flavour):
    section = b"".join(record(body(i, time=t)) for i, t in enumerate([0, -101, 50, 2**63 - 1]))
    outside = load(flavour, "record_walk").timestamps_outside
    assert outside(section, 0, len(section), 4, 100, 90, 120, 9) == [2, 3]
    assert outside(section, 0, len(section), 4, 100, 90, 120, 1) == [2]


@pytest.mark.parametrize(
    ("base", "low", "high", "expected"),
    [(-(2**63), 0, 2**63 - 1, [0]), (2**63 - 1, -(2**63), 0, [0, 1]), (0, 0, 2**63 - 1, [])],
)
def test_S24_bounds_beyond_64_bits_from_the_base_do_not_wrap(flavour, base, low, high, expected):
    section = record(body(0, time=0)) + record(body(1, time=2**63 - 1))
    outside = load(flavour, "record_walk").timestamps_outside
    assert outside(section, 0, len(section), 2, base, low, high, 9) == expected


@pytest.mark.parametrize("headers", [field(None), vi(9), field(b"a") + vi(9), field(b"a") + vi(-2)])
def test_inconsistent_headers_are_refused(flavour, headers):
    with pytest.raises(ValueError, match="header"):
        load(flavour, "record_walk").read_headers(headers, 0, len(headers), 1)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        (b"tidemill.delay-ms", 1),
        (b"tidemill.", 1),
        (b"tidemill", 0),
        (b"tidemill-x", 0),
        (b"tidemilk.x", 0),
        (b"Tidemill.x", 0),
        (b"x.tidemill.", 0),
        (b"", 0),
    ],
)
def test_headers_of_our_names_are_counted(flavour, name, count):
    own = record(body(0), vi(2) + field(b"h") + field(b"v") + field(name) + field(b"tidemill.v"))
    assert walk(flavour, own + record(body(1)), 2)[3] == count
