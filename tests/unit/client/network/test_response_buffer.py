from __future__ import annotations

import pytest

from tidemill.client.network.response_buffer import ResponseBuffer
from tidemill.core.errors import ProtocolViolation

BYTES_MAX = 1 << 20


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def feed(buffer: ResponseBuffer, data: bytes, piece: int) -> list[bytes]:
    frames: list[bytes] = []
    while data:
        space = buffer.space()
        count = min(piece, len(space), len(data))
        space[:count] = data[:count]
        frames += [bytes(frame) for frame in buffer.received(count)]
        data = data[count:]
    return frames


@pytest.mark.parametrize("piece", [1, 3, 7, 1000, 16_384, 1 << 20])
def test_frames_come_out_whole_however_the_bytes_arrive(piece):
    bodies = [b"tiny", b"x" * 15_000, b"y" * 200_000 if piece > 3 else b"y" * 2_000, b"last"]

    frames = feed(ResponseBuffer(BYTES_MAX), b"".join(map(framed, bodies)), piece)

    assert frames == bodies


def test_a_frame_stays_intact_while_later_ones_arrive():
    buffer = ResponseBuffer(BYTES_MAX)
    buffer.space()[:8] = framed(b"aaaa")
    [first] = buffer.received(8)

    feed(buffer, framed(b"bbbb"), 8)

    assert bytes(first) == b"aaaa"


def test_the_rest_of_a_large_frame_is_read_into_its_own_memory():
    buffer = ResponseBuffer(BYTES_MAX)
    head = framed(b"z" * 100_000)[:1000]
    space = buffer.space()
    space[: len(head)] = head
    buffer.received(len(head))

    assert len(buffer.space()) == 100_000 - (len(head) - 4)


@pytest.mark.parametrize("length", [-1, 0, BYTES_MAX + 1, 0x16030100])
def test_T10_an_impossible_length_is_refused_before_anything_is_buffered(length):
    buffer = ResponseBuffer(BYTES_MAX)
    buffer.space()[:4] = length.to_bytes(4, "big", signed=True)

    with pytest.raises(ProtocolViolation, match="frame of"):
        buffer.received(4)
