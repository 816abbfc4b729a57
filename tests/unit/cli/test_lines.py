from __future__ import annotations

import asyncio
import io
import os

import pytest

from tidemill.cli import lines as lines_module
from tidemill.cli.lines import read_lines
from tidemill.core.errors import UserError


async def collect(stream) -> list[bytes]:
    return [line async for line in read_lines(stream)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"dos\r\n", [b"dos\r"]),
        (b"x" * 200_000 + b"\ny\n", [b"x" * 200_000, b"y"]),
    ],
    ids=["empty", "two", "blank and unfinished", "carriage return", "longer than a chunk"],
)
def test_lines_are_returned_without_their_newlines(run, data, expected):
    assert run(collect(io.BytesIO(data))) == expected


def test_a_file_is_read_although_it_cannot_be_waited_for(run, tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")

    with path.open("rb") as stream:
        assert run(collect(stream)) == [b"one", b"two"]


def test_a_slow_pipe_does_not_block_the_event_loop(run):
    async def scenario():
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb") as stream:
            lines = read_lines(stream)
            first = asyncio.ensure_future(anext(lines))
            await asyncio.sleep(0)
            os.write(write_end, b"late\n")
            os.close(write_end)
            return [await first, *[line async for line in lines]]

    assert run(scenario()) == [b"late"]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(run, monkeypatch):
    monkeypatch.setattr(lines_module, "LINE_BYTES_MAX", 100_000)

    with pytest.raises(UserError, match="longer than 100000 bytes"):
        run(collect(io.BytesIO(b"x" * 1_000_000)))
