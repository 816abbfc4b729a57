"""A log line stays one line even if it quotes a peer, and the number of lines is bounded."""

from __future__ import annotations

import io
import logging

import pytest

from tidemill.core.limits import LOGGED_NAMES_MAX, LOGGED_TEXT_CHARS_MAX
from tidemill.core.logs import LineFormatter, RateLimit, listed, shown

INJECTIONS = [
    "a\r\n2026-01-01 CRITICAL root all is lost",
    "\x1b[2J\x1b[31mred",
    "\x7f\x9b31m",
    "${jndi:ldap://x}%s%n{0}",
    "\u2028next\u2029line\x85",
    "\0",
]


@pytest.mark.parametrize("text", INJECTIONS)
def test_S52_no_control_character_of_a_peer_is_shown(text):
    line = shown(text)
    assert line.isprintable()
    assert line.isascii()
    assert line.startswith('"')
    assert line.endswith('"')


def test_S52_a_megabyte_of_text_is_cut():
    assert len(shown("x" * 2**20)) == LOGGED_TEXT_CHARS_MAX + 2
    assert len(shown("\0" * 2**20)) <= 6 * LOGGED_TEXT_CHARS_MAX + 2


@pytest.fixture
def logged():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    log = logging.getLogger("tidemill.test.lines")
    log.addHandler(handler)
    log.propagate = False
    yield log, lambda: stream.getvalue().splitlines()
    log.removeHandler(handler)


@pytest.mark.parametrize("text", INJECTIONS)
def test_S52_even_unescaped_text_stays_on_its_line(logged, text):
    log, lines = logged
    log.error("refused: %s", text)
    (line,) = lines()
    assert line.isprintable()


def test_S52_an_exception_that_quotes_a_peer_cannot_look_like_another_line(logged):
    log, lines = logged
    try:
        raise ValueError("bad name\n2026-01-01 00:00:00,000 CRITICAL root all is lost\x1b[0m")
    except ValueError:
        log.exception("a request failed")
    first, *rest = lines()
    assert "a request failed" in first
    assert rest
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)


def test_S52_percent_signs_of_a_peer_are_not_a_format(logged):
    log, lines = logged
    log.warning("client %s", shown("%s%d%n"))
    assert lines()[0].endswith('client "%s%d%n"')


def test_one_line_per_peer_and_interval():
    limit = RateLimit(60.0)
    assert limit.allows("a", 0.0)
    assert not limit.allows("a", 59.9)
    assert limit.allows("b", 59.9)
    assert limit.allows("a", 60.0)
    assert not limit.allows("a", 61.0)


def test_S38_many_peers_get_a_bounded_number_of_lines_and_evict_no_other_peer():
    limit = RateLimit(60.0)
    assert limit.allows("victim", 0.0)
    allowed = sum(limit.allows(f"peer {number}", 1.0) for number in range(10_000))
    assert allowed == RateLimit.PEERS_MAX - 1
    assert not limit.allows("victim", 2.0)
    assert limit.allows("peer 9999", 61.0)


def test_a_line_names_the_first_of_many_and_gives_the_number_of_the_others():
    assert listed(["a-0", "b-1"]) == "a-0, b-1"
    names = [f"t-{index}" for index in range(LOGGED_NAMES_MAX + 2)]
    assert listed(names[:-2]) == ", ".join(names[:-2])
    assert listed(names) == ", ".join(names[:-2]) + " and 2 more"
