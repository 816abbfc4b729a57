from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)

KNOWN = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("value", "hexadecimal"), KNOWN)
def test_known_values_have_their_known_bytes(flavour, value, hexadecimal):
    varint = load(flavour, "varint")
    out = bytearray(1 + varint.size(value))
    assert varint.write(out, 1, value) == len(out)
    assert out[1:].hex() == hexadecimal
    assert varint.read(out, 1, len(out), 64) == (value, len(out))


@given(st.integers(-(2**63), 2**63 - 1))
def test_what_is_written_is_read_back(flavour, value):
    varint = load(flavour, "varint")
    out = bytearray(varint.size(value))
    varint.write(out, 0, value)
    assert varint.read(out, 0, len(out), 64) == (value, len(out))


@pytest.mark.parametrize(
    ("hexadecimal", "bits"),
    [
        ("", 64),
        ("80", 64),
        ("8080808080", 32),
        ("808080808000", 32),
        ("ffffffff10", 32),
        ("ffffffffffffffffff02", 64),
        ("8080808080808080808000", 64),
    ],
)
def test_a_cut_or_overlong_integer_is_refused(flavour, hexadecimal, bits):
    data = bytes.fromhex(hexadecimal)
    with pytest.raises(ValueError, match="varint"):
        load(flavour, "varint").read(data, 0, len(data), bits)


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (2, 1), (0, 4), (-(2**40), 3)])
def test_a_range_outside_the_buffer_is_refused(flavour, start, end):
    with pytest.raises(ValueError, match="range"):
        load(flavour, "varint").read(b"\x00\x00\x00", start, end, 64)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70])
def test_a_value_beyond_64_bits_is_refused(flavour, value):
    varint = load(flavour, "varint")
    with pytest.raises(OverflowError):
        varint.write(bytearray(20), 0, value)
    with pytest.raises(OverflowError):
        varint.size(value)


@pytest.mark.parametrize(("position", "value"), [(2, 0), (-1, 0), (1, 64), (0, 2**30)])
def test_an_integer_without_room_is_refused(flavour, position, value):
    with pytest.raises(IndexError):
        load(flavour, "varint").write(bytearray(2), position, value)
