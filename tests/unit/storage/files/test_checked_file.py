from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import UserError
from tidemill.storage.files.checked_file import (
    DamagedFile,
    decode_checked,
    encode_checked,
    iter_blocks,
)

GOOD = encode_checked(b"TEST", 1, b"payload")


def decode(data: bytes) -> bytes:
    return bytes(decode_checked(data, kind=b"TEST", version=1, name="a-file"))


@given(st.binary(max_size=200))
def test_what_was_encoded_is_decoded(payload):
    assert decode(encode_checked(b"TEST", 1, payload)) == payload


@pytest.mark.parametrize("position", range(len(GOOD)))
def test_R10_any_changed_byte_is_detected(position):
    damaged = bytearray(GOOD)
    damaged[position] ^= 0x10
    with pytest.raises(DamagedFile, match="a-file"):
        decode(bytes(damaged))


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_R10_any_cut_is_detected(size):
    with pytest.raises(DamagedFile):
        decode(GOOD[:size])


def test_R10_bytes_after_the_end_are_detected():
    with pytest.raises(DamagedFile, match="too many"):
        decode(GOOD + b"x")


def test_a_file_of_another_kind_is_refused():
    with pytest.raises(DamagedFile, match="not a TEST file"):
        decode(encode_checked(b"ELSE", 1, b""))


def test_R10_a_newer_version_is_refused_by_name_and_number():
    with pytest.raises(UserError, match=r"a-file has format version 2, this Tidemill knows 1"):
        decode(encode_checked(b"TEST", 2, b""))


def blocks(data: bytes) -> list[tuple[bytes, int]]:
    found = iter_blocks(data, kind=b"TEST", version=1, name="a-file")
    return [(bytes(payload), size) for payload, size in found]


def test_blocks_are_read_up_to_the_first_that_is_not_whole():
    second = encode_checked(b"TEST", 1, b"")
    assert blocks(GOOD + second) == [(b"payload", len(GOOD)), (b"", len(second))]
    assert blocks(GOOD + second[:-1]) == [(b"payload", len(GOOD))]
    assert blocks(GOOD[:-1] + second) == []
    assert blocks(b"") == []
