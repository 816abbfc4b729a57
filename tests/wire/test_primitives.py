"""Single fields: what is accepted, and that everything else is a `ProtocolViolation`."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import ProtocolViolation
from tidemill.core.limits import STRING_BYTES_MAX
from tidemill.wire.primitives import Reader, Writer

READS = [
    name
    for name in dir(Reader)
    if not name.startswith("_") and name not in {"budget", "buf", "end", "pos"}
]
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "compact_count": (1,),
    "compact_nullable_count": (1,),
    "count": (1,),
    "nullable_count": (1,),
    "ints": ("i", 1),
    "fixed": (struct.Struct(">i"),),
    "tag": (-1,),
    "text": (1,),
}


@pytest.mark.parametrize("name", sorted(set(READS) - {"finish", "end_tag"}))
def test_every_read_at_the_end_is_a_violation(name):
    with pytest.raises(ProtocolViolation):
        getattr(Reader(b""), name)(*ARGUMENTS.get(name, ()))


@pytest.mark.parametrize(
    ("name", "encoded", "value"),
    [
        ("int8", "80", -128),
        ("int16", "8000", -(2**15)),
        ("int32", "7fffffff", 2**31 - 1),
        ("int64", "ffffffffffffffff", -1),
        ("uint16", "ffff", 2**16 - 1),
        ("uint32", "ffffffff", 2**32 - 1),
        ("float64", "3ff8000000000000", 1.5),
        ("boolean", "00", False),
        ("boolean", "02", True),
        ("uuid", "00112233445566778899aabbccddeeff", UUID(int=0x112233445566778899AABBCCDDEEFF)),
        ("uvarint", "00", 0),
        ("uvarint", "7f", 127),
        ("uvarint", "8001", 128),
        ("uvarint", "ffffffff0f", 2**32 - 1),
        ("string", "0003616263", "abc"),
        ("string", "0002c3a9", "é"),
        ("nullable_string", "ffff", None),
        ("compact_string", "01", ""),
        ("compact_string", "03c3a9", "é"),
        ("compact_nullable_string", "00", None),
        ("plain_bytes", "00000002cafe", b"\xca\xfe"),
        ("nullable_bytes", "ffffffff", None),
        ("nullable_bytes", "00000000", b""),
        ("compact_bytes", "03cafe", b"\xca\xfe"),
        ("compact_nullable_bytes", "00", None),
        ("present", "ff", False),
        ("present", "01", True),
    ],
)
def test_primitive_reads_its_bytes(name, encoded, value):
    r = Reader(bytes.fromhex(encoded))
    assert getattr(r, name)() == value
    r.finish()


@given(st.integers(0, 2**32 - 1))
def test_unsigned_varints_read_back(value):
    w = Writer()
    w.uvarint(value)
    r = Reader(w.buf)
    assert r.uvarint() == value
    r.finish()


@given(st.text())
def test_strings_read_back_in_both_forms(text):
    w = Writer()
    w.string(text)
    w.compact_string(text)
    r = Reader(w.buf)
    assert (r.string(), r.compact_string()) == (text, text)
    r.finish()


@pytest.mark.parametrize(
    "encoded",
    ["8000", "ff00", "808000", "8080808000", "ffffffffff00", "ffffffff1f", "808080808001"],
    ids=["padded 0", "padded 127", "3 bytes", "5 bytes", "6 bytes", "33 bits", "6 bytes of 0"],
)
def test_S6_overlong_varints_are_violations(encoded):
    with pytest.raises(ProtocolViolation, match="overlong"):
        Reader(bytes.fromhex(encoded)).uvarint()


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("string", "ffff"),
        ("compact_string", "00"),
        ("plain_bytes", "ffffffff"),
        ("compact_bytes", "00"),
        ("compact_records", "00"),
        ("count", "ffffffff"),
        ("compact_count", "00"),
    ],
)
def test_S6_null_where_it_is_not_allowed_is_a_violation(name, encoded):
    with pytest.raises(ProtocolViolation):
        getattr(Reader(bytes.fromhex(encoded)), name)(*ARGUMENTS.get(name, ()))


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("nullable_string", "fffe"),
        ("nullable_bytes", "fffffffe"),
        ("nullable_records", "80000000"),
        ("nullable_count", "fffffffe"),
        ("count", "80000000"),
    ],
)
def test_S6_lengths_below_minus_one_are_violations(name, encoded):
    with pytest.raises(ProtocolViolation):
        getattr(Reader(bytes.fromhex(encoded) + bytes(64)), name)(*ARGUMENTS.get(name, ()))


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("string", "0003 6162"),
        ("compact_string", "04 6162"),
        ("plain_bytes", "7fffffff 6162"),
        ("compact_bytes", "ffffffff0f 6162"),
        ("nullable_records", "00000003 6162"),
        ("compact_nullable_records", "04 6162"),
    ],
)
def test_S3_a_length_above_the_remaining_bytes_is_a_violation(name, encoded):
    with pytest.raises(ProtocolViolation):
        getattr(Reader(bytes.fromhex(encoded)), name)()


@pytest.mark.parametrize("raw", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_S8_text_that_is_not_utf8_is_a_violation(raw):
    with pytest.raises(ProtocolViolation, match="UTF-8"):
        Reader(bytes([len(raw) + 1]) + raw).compact_string()


def test_S8_compact_strings_are_held_to_the_classic_length():
    w = Writer()
    w.compact_string("x" * STRING_BYTES_MAX)
    assert len(Reader(w.buf).compact_string()) == STRING_BYTES_MAX

    w = Writer()
    w.compact_bytes(b"x" * (STRING_BYTES_MAX + 1))
    with pytest.raises(ProtocolViolation, match="at most"):
        Reader(w.buf).compact_string()


@pytest.mark.parametrize("name", ["string", "compact_string"])
def test_a_string_too_long_to_be_read_is_not_written(name):
    with pytest.raises(ValueError, match="at most"):
        getattr(Writer(), name)("é" * STRING_BYTES_MAX)


def test_S7_finish_refuses_remaining_bytes():
    r = Reader(b"\0\0\0\1\0\0")
    r.int32()
    with pytest.raises(ProtocolViolation, match="2 bytes after"):
        r.finish()


def test_records_are_views_into_the_message():
    frame = bytearray(b"\x05abcd")
    records = Reader(frame).compact_nullable_records()
    assert records is not None
    frame[1] = ord("X")
    assert bytes(records) == b"Xbcd"


def test_record_payloads_are_passed_through_uncopied():
    first, second = bytearray(b"first"), memoryview(b"second")
    w = Writer()
    w.nullable_records(first)
    w.buf += b"between"
    w.compact_nullable_records(second)

    chunks = w.chunks()

    assert chunks[1] is first
    assert chunks[3] is second
    assert b"".join(chunks) == b"\0\0\0\x05first" + b"between" + b"\x07second"
    assert w.size == len(b"".join(chunks))


def test_empty_payloads_make_no_chunk():
    w = Writer()
    w.compact_nullable_records(b"")
    w.compact_nullable_records(None)
    assert [bytes(chunk) for chunk in w.chunks()] == [b"\x01\x00"]


def test_a_negative_varint_is_not_written():
    with pytest.raises(ValueError, match="unsigned"):
        Writer().uvarint(-1)
