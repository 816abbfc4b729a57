"""The supervisor's standard error: bounded, in order, never waited for."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator

import pytest

from tidemill.cli.supervising.kept_lines import KEPT_BYTES_MAX
from tidemill.cli.supervising.log_output import (
    LINE_BYTES_MAX,
    LogOutput,
    relay_lines,
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    yield ends
    for end in ends:
        os.close(end)


class Shown:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def _relayed(run, *chunks: bytes) -> list[str]:
    async def scenario() -> list[str]:
        stream, shown = asyncio.StreamReader(), Shown()
        for chunk in chunks:
            stream.feed_data(chunk)
        stream.feed_eof()
        await relay_lines(stream, shown, "[broker 1] ")
        return shown.lines

    return run(scenario())


def test_every_line_has_the_name_of_its_broker(run):
    assert _relayed(run, b"one\ntwo", b" and a half\nlast") == [
        "[broker 1] one",
        "[broker 1] two and a half",
        "[broker 1] last",
    ]


def test_S52_control_characters_of_a_broker_do_not_reach_the_terminal(run):
    assert _relayed(run, b"\x1b[2Jgone\xff\n") == ["[broker 1] \\x1b[2Jgone\\xff"]


def test_a_line_that_never_ends_is_shown_in_pieces(run):
    lines = _relayed(run, b"x" * (10 * LINE_BYTES_MAX))
    assert len(lines) >= 5
    assert max(map(len, lines)) <= 2 * LINE_BYTES_MAX + len("[broker 1] ")
    assert sum(line.count("x") for line in lines) == 10 * LINE_BYTES_MAX


def test_what_nobody_reads_is_dropped_beyond_a_bound_and_counted(run, pipe):
    reader, writer = pipe

    async def scenario() -> list[str]:
        output = LogOutput(writer)
        for n in range(3 * KEPT_BYTES_MAX // 1000):
            output.say(f"{n:06d}" + "x" * 993)
        stream = asyncio.StreamReader(limit=2 * KEPT_BYTES_MAX)  # somebody reads again
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(os.dup(reader), "rb", 0)
        )
        read = await stream.readuntil(b"no reader\n")
        transport.close()
        return read.decode().splitlines()

    *shown, note = run(scenario())
    numbers = [int(line[:6]) for line in shown]
    assert numbers == list(range(len(numbers)))
    dropped = 3 * KEPT_BYTES_MAX // 1000 - len(numbers)
    assert note == f"[supervisor] {dropped} lines were dropped: no reader"
    assert len(numbers) * 1000 <= KEPT_BYTES_MAX


def test_a_reader_that_is_gone_stops_nobody(run):
    reader, writer = os.pipe()
    os.close(reader)

    async def scenario() -> None:
        output = LogOutput(writer)
        output.say("one")
        await output.flush()
        output.say("two")
        await output.flush()

    run(scenario())
    os.close(writer)


def test_a_file_gets_every_line_at_once(run, tmp_path):
    async def scenario() -> None:
        with (tmp_path / "log").open("wb") as file:
            output = LogOutput(file.fileno())
            output.say("one")
            output.say("two" * 3000)

    run(scenario())
    assert (tmp_path / "log").read_text() == "one\n" + "two" * 3000 + "\n"
