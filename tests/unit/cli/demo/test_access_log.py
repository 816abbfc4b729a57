from __future__ import annotations

import re
from collections import Counter

from tidemill.cli.demo.access_log import AccessLog
from tidemill.core.rng import SeededRng

NOW_MS = 1_794_778_200_000

COMBINED = re.compile(
    r"(?P<host>\d+\.\d+\.\d+\.\d+) - (?P<user>\S+) "
    r"\[15/Nov/2026:21:30:00 \+0000\] "
    r'"(?P<method>GET|POST) (?P<path>/\S*) HTTP/1\.1" (?P<status>\d{3}) (?P<size>\d+) '
    r'"(?P<referer>[^"]+)" "(?P<agent>[^"]+)"'
)


def lines(seed: int, count: int) -> list[tuple[bytes, bytes]]:
    log = AccessLog(SeededRng(seed))
    return [log.line(NOW_MS) for _ in range(count)]


def test_every_line_is_in_combined_log_format_with_the_address_as_its_key():
    for key, line in lines(1, 500):
        match = COMBINED.fullmatch(line.decode())
        assert match is not None, line
        assert match["host"] == key.decode()


def test_the_same_seed_makes_the_same_lines_and_another_one_others():
    assert lines(1, 50) == lines(1, 50)
    assert lines(1, 50) != lines(2, 50)


def test_most_answers_are_good_and_some_are_not():
    statuses = Counter(line.split(b'" ')[1][:3] for _, line in lines(3, 2000))

    assert 0.75 < statuses[b"200"] / 2000 < 0.95
    assert statuses[b"404"] > 0
    assert statuses[b"500"] > 0


def test_the_time_in_a_line_moves_with_the_clock():
    log = AccessLog(SeededRng(1))

    assert b"21:30:00" in log.line(NOW_MS)[1]
    assert b"21:30:01" in log.line(NOW_MS + 1000)[1]
