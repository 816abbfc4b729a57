"""A broker under abuse, seen from outside: what it holds, what it logs, and whether it serves."""

from __future__ import annotations

import os
import re
import time
from itertools import count
from pathlib import Path
from unittest.mock import patch

from tests.abuse.requests import (
    CREATE_TOPICS,
    FETCH,
    PRODUCE,
    batch,
    code_of,
    create,
    fetch,
    partition_of,
    produce,
)
from tests.abuse.stranger import Stranger, wait_until
from tests.e2e.broker_process import BrokerProcess

MIB = 1 << 20
SETTINGS = (
    "socket.request.max.bytes=16777216",
    "request.memory.bytes=16777216",
    "response.memory.bytes=16777216",
    "fetch.max.bytes=8388608",
)
REQUEST_BYTES_MAX = 16 * MIB
REQUEST_MEMORY_BYTES = 16 * MIB
RESPONSE_MEMORY_BYTES = 16 * MIB

CANARY_S = 1.0
"""A hundred times what it takes: it catches a broker that hangs, not one that is slow."""
DEADLINE_OF_A_HANG_S = 5.0
BACK_TO_BASELINE_S = 10.0
MEMORY_SLACK_BYTES = 20 * MIB
"""Spare buffers that are kept on purpose, and caches that fill."""
HONEST_ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=65536"
}
"""The C library gives memory back at once, so that what the process holds is what it uses."""
DESCRIPTOR_SLACK = 8
"""Log files that were opened on the way."""

_FINE = re.compile(r" (INFO|WARNING) ")


class Victim:
    """`tidemill up` with small memory limits."""

    def __init__(self, data_dir: Path, *settings: str) -> None:
        self.process = BrokerProcess(data_dir, *SETTINGS, *settings)
        self._addresses = (f"127.{n // 250}.{n % 250}.1" for n in count(300))
        self._canaries = count()

    def start(self):
        with patch.dict(os.environ, HONEST_ALLOCATOR):
            self.process.start()
        with self.connect() as stranger:
            assert stranger.call(create("canary"), CREATE_TOPICS).topics[0].error_code == 0
        self.sing()
        return self

    @property
    def bootstrap(self):
        return self.process.bootstrap

    def connect(self, source=None, **options):
        return Stranger(self.bootstrap, source or self.new_peer(), **options)

    def new_peer(self):
        """An address that no other test uses: lines are counted by it."""
        return next(self._addresses)

    # --- what it holds ---------------------------------------------------------------------------

    def memory_bytes(self):
        """Memory of its own, mapped files not counted."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024

    def peak_memory_bytes(self, during_s=0.5):
        """The most that it holds within a moment."""
        ends_at, peak = time.monotonic() + during_s, 0
        while time.monotonic() < ends_at:
            peak = max(peak, self.memory_bytes())
        return peak

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # --- what it says ----------------------------------------------------------------------------

    def log_lines(self):
        return self.process.log_path.read_text().splitlines()

    def lines_about(self, peer):
        return [line for line in self.log_lines() if f'"{peer}"' in line]

    # --- whether it serves -----------------------------------------------------------------------

    def sing(self, within_s=CANARY_S):
        """Produce and fetch one record on a new connection."""
        value = b"canary %d" % next(self._canaries)
        started = time.monotonic()
        with self.connect("127.0.0.1", timeout_s=DEADLINE_OF_A_HANG_S) as stranger:
            produced = stranger.call(produce("canary", batch(value)), PRODUCE)
            assert code_of(produced) == 0
            offset = produced.responses[0].partition_responses[0].base_offset
            fetched = stranger.call(fetch("canary", offset=offset), FETCH)
            assert value in bytes(partition_of(fetched).records)
        assert time.monotonic() - started < within_s


class Baseline:
    """What the broker held before; afterwards it must be no more."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self.memory_bytes = victim.memory_bytes()
        self.descriptors = victim.descriptors()
        self.lines = len(victim.log_lines())

    def assert_restored(self) -> None:
        victim = self.victim
        victim.sing()
        wait_until(
            lambda: victim.descriptors() <= self.descriptors + DESCRIPTOR_SLACK,
            "descriptors are given back",
            BACK_TO_BASELINE_S,
        )
        wait_until(
            lambda: victim.memory_bytes() <= self.memory_bytes + MEMORY_SLACK_BYTES,
            "memory is given back",
            BACK_TO_BASELINE_S,
        )
        for line in victim.log_lines()[self.lines :]:
            assert _FINE.search(line), line
        self._assert_one_line_per_peer()

    def _assert_one_line_per_peer(self) -> None:
        lines = self.victim.log_lines()[self.lines :]
        peers = [re.search(r'closed connection from "([^"]+)"', line) for line in lines]
        named = [found[1] for found in peers if found]
        assert len(named) == len(set(named)), named
