"""A broker's log while nobody reads it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tidemill.cli.supervising.broker_log import BrokerLog
from tidemill.cli.supervising.kept_lines import KEPT_BYTES_MAX

LINE = "x" * 99
PIPE_BYTES_MIN = 4096
MANY = 2 * KEPT_BYTES_MAX // len(LINE)


class Pipe:
    """What a broker logs into; the test reads it when it likes."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.log = BrokerLog(self._writer)

    def say(self, text: str) -> None:
        self.log.handle(logging.LogRecord("t", logging.INFO, "", 0, text, None, None))

    def read(self) -> str:
        parts: list[bytes] = []
        with suppress(BlockingIOError):
            while part := os.read(self.reader, 1 << 20):
                parts.append(part)
        return b"".join(parts).decode()

    def end(self) -> None:
        for descriptor in (self.reader, self._writer):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.end()


def test_lines_that_are_read_come_at_once(pipe):
    pipe.say("one")
    pipe.say("two")
    assert pipe.read() == "one\ntwo\n"


def test_a_log_that_nobody_reads_stops_nobody_and_is_bounded(pipe):
    """The supervisor may be stopped, or a terminal paused: a broker that waits for it is killed."""
    for _ in range(MANY):
        pipe.say(LINE)
    shown = ""
    for _ in range(KEPT_BYTES_MAX // PIPE_BYTES_MIN):
        shown += pipe.read()
        pipe.say("next")
    lines = shown.splitlines()
    assert {len(line) for line in lines if line.startswith("x")} == {len(LINE)}
    kept = sum(line == LINE for line in lines)
    assert 0 < kept < MANY
    (told,) = [line for line in lines if "dropped" in line]
    assert told == f"{MANY - kept} lines were dropped: no reader"
    assert "next" in lines


def test_what_is_left_at_the_end_has_a_second(pipe):
    pipe.say("last")
    pipe.log.close()
    assert pipe.read() == "last\n"


def test_a_reader_that_is_gone_ends_nothing(pipe):
    os.close(pipe.reader)
    pipe.say("nobody hears this")
    pipe.say("nor this")
    pipe.reader = os.open(os.devnull, os.O_RDONLY)
