"""Frames: the length is checked first, and the bytes may arrive in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.core.errors import ProtocolViolation
from tidemill.wire.frames import FrameDecoder, encode_frame, parse_frame_length

BYTES_MAX = 100 * 1024 * 1024


def stream(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@pytest.mark.parametrize("length", [10, 11, BYTES_MAX])
def test_a_length_within_bounds_is_returned(length):
    assert parse_frame_length(length.to_bytes(4, "big"), BYTES_MAX) == length


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 9, BYTES_MAX + 1, 2**31 - 1])
def test_S1_a_length_outside_the_bounds_is_a_violation(length):
    with pytest.raises(ProtocolViolation, match=f"frame of {length} bytes"):
        parse_frame_length(length.to_bytes(4, "big", signed=True), BYTES_MAX)


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"GET ", "HTTP"),
        (b"POST", "HTTP"),
        (b"PRI ", "HTTP"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x16\x03\x03\x00", "TLS"),
    ],
)
def test_S1_T10_the_wrong_protocol_is_named(start, hint):
    with pytest.raises(ProtocolViolation, match=f"looks like {hint}"):
        parse_frame_length(start, BYTES_MAX)


def test_a_response_may_be_shorter_than_a_request_header():
    assert parse_frame_length(b"\0\0\0\4", BYTES_MAX, bytes_min=4) == 4


def test_frames_fed_byte_by_byte_come_out_whole():
    bodies = [bytes([number]) * (10 + number) for number in range(20)]
    decoder = FrameDecoder(BYTES_MAX)
    frames = [frame for byte in stream(bodies) for frame in decoder.feed(bytes([byte]))]
    assert frames == bodies
    assert decoder.buffered_bytes == 0


@settings(max_examples=40)
@given(st.lists(st.binary(min_size=10, max_size=40), max_size=6), st.data())
def test_frames_are_decoded_however_the_stream_is_cut(bodies, data):
    rest = stream(bodies)
    decoder = FrameDecoder(BYTES_MAX)
    frames: list[memoryview] = []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        frames += decoder.feed(rest[:size])
        rest = rest[size:]
    assert frames == bodies


def test_a_frame_does_not_change_with_what_is_fed_later():
    decoder = FrameDecoder(BYTES_MAX)
    chunk = bytearray(stream([b"0123456789"]))
    [frame] = decoder.feed(chunk)
    chunk[4:] = bytes(10)
    decoder.feed(stream([bytes(10)]))
    assert frame == b"0123456789"


def test_S2_an_announced_frame_that_is_not_sent_costs_its_prefix_only():
    decoder = FrameDecoder(BYTES_MAX)
    assert decoder.feed(BYTES_MAX.to_bytes(4, "big")) == []
    assert decoder.buffered_bytes == 4


def test_S1_the_decoder_refuses_a_bad_length_before_its_body():
    decoder = FrameDecoder(BYTES_MAX)
    with pytest.raises(ProtocolViolation):
        decoder.feed(b"\x7f\xff\xff\xff")


def test_encode_frame_puts_the_length_first_and_copies_nothing():
    body = memoryview(b"records")
    frame = encode_frame([b"head", body])
    assert b"".join(frame) == b"\0\0\0\x0bheadrecords"
    assert frame[2] is body
