"""A broker under attack, seen from outside: its memory, its log, and whether it serves."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from itertools import count
from pathlib import Path

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
from tidemill.testing.broker_process import BrokerProcess
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest

MIB = 1 << 20
SETTINGS = (
    "socket.request.max.bytes=8388608",
    "request.memory.bytes=16777216",
    "response.memory.bytes=16777216",
    "fetch.max.bytes=8388608",
    "metrics.listen=127.0.0.1:0",
    "log.retention.ms=-1",  # records of the tests are from 1970
)
GAUGES = (
    "tidemill_connections",
    "tidemill_request_memory_bytes",
    "tidemill_response_memory_bytes",
    "tidemill_parked_fetches",
)
REQUEST_BYTES_MAX = 8 * MIB
REQUEST_MEMORY_BYTES = 16 * MIB
RESPONSE_MEMORY_BYTES = 16 * MIB

CANARY_S = 3.0
"""Hundreds of times the usual time: it catches a broker that hangs, not a busy machine."""
HANG_DEADLINE_S = 5.0
BACK_TO_BASELINE_S = 10.0
MEMORY_KEPT_BYTES = 88 * MIB
"""Heap that the process keeps on purpose (64 MiB), spare buffers, and caches."""
DESCRIPTOR_SLACK = 8
"""Log files opened during a test."""

_FINE = re.compile(r" (INFO|WARNING) ")


class Victim:
    """`tidemill up` with small memory limits."""

    def __init__(self, data_dir: Path, *settings: str) -> None:
        self.process = BrokerProcess(data_dir, *SETTINGS, *settings)
        self._addresses = (f"127.{n // 250}.{n % 250}.1" for n in count(300))
        self._canaries = count()

    def start(self):
        self.process.start()
        with self.connect() as stranger:
            assert stranger.call(create("canary"), CREATE_TOPICS).topics[0].error_code == 0
            # The first group creates fifty logs, which must not look like a leak of the first test.
            assert stranger.call(FindCoordinatorRequest(key="any"), 3).error_code == 0
        self.check_canary()
        wait_until(lambda: self.gauges() == dict.fromkeys(GAUGES, 0), "it is idle")
        self.memory_bytes_at_start = self.memory_bytes()
        return self

    @property
    def bootstrap(self):
        return self.process.bootstrap

    def connect(self, source=None, **options):
        return Stranger(self.bootstrap, source or self.new_peer(), **options)

    def new_peer(self):
        """An address that no other test uses, so that its log lines can be counted."""
        return next(self._addresses)

    # --- resources -------------------------------------------------------------------------------

    def memory_bytes(self):
        """Anonymous memory of the process, without mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024

    def peak_memory_bytes(self, during_s=0.5):
        """The maximum of `memory_bytes` within `during_s`."""
        ends_at, peak = time.monotonic() + during_s, 0
        while time.monotonic() < ends_at:
            peak = max(peak, self.memory_bytes())
        return peak

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self):
        """Name and labels -> value."""
        (url,) = re.findall(r"metrics on (\S+)", self.process.log_path.read_text())
        with urllib.request.urlopen(url, timeout=HANG_DEADLINE_S) as page:
            lines = page.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def gauges(self):
        """The gauges of resources that clients hold."""
        metrics = self.metrics()
        return {name: metrics[name] for name in GAUGES}

    # --- log and offsets -------------------------------------------------------------------------

    def log_lines(self):
        return self.process.log_path.read_text().splitlines()

    def lines_about(self, peer):
        return [line for line in self.log_lines() if f'"{peer}"' in line]

    def end_offset(self, topic):
        """The end of the only partition."""
        with self.connect("127.0.0.1") as stranger:
            return partition_of(stranger.call(fetch(topic), FETCH)).high_watermark

    # --- the canary ------------------------------------------------------------------------------

    def check_canary(self, within_s=CANARY_S):
        """Produce and fetch one record on a new connection."""
        value = b"canary %d" % next(self._canaries)
        started = time.monotonic()
        with self.connect("127.0.0.1", timeout_s=HANG_DEADLINE_S) as stranger:
            produced = stranger.call(produce("canary", batch(value)), PRODUCE)
            assert code_of(produced) == 0
            offset = produced.responses[0].partition_responses[0].base_offset
            fetched = stranger.call(fetch("canary", offset=offset), FETCH)
            assert value in bytes(partition_of(fetched).records)
        assert time.monotonic() - started < within_s


class Baseline:
    """The resources in use before a test; after it there must be no more."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self.gauges = victim.gauges()
        self.descriptors = victim.descriptors()
        self.lines = len(victim.log_lines())

    def assert_restored(self) -> None:
        victim = self.victim
        victim.check_canary()
        wait_until(
            lambda: victim.descriptors() <= self.descriptors + DESCRIPTOR_SLACK,
            "descriptors are given back",
            BACK_TO_BASELINE_S,
        )
        wait_until(
            lambda: victim.gauges() == self.gauges, "memory is given back", BACK_TO_BASELINE_S
        )
        kept = victim.memory_bytes() - victim.memory_bytes_at_start
        assert kept <= MEMORY_KEPT_BYTES
        for line in victim.log_lines()[self.lines :]:
            assert _FINE.search(line), line
        self._assert_one_line_per_peer()

    def _assert_one_line_per_peer(self) -> None:
        lines = self.victim.log_lines()[self.lines :]
        peers = [re.search(r'closed connection from "([^"]+)"', line) for line in lines]
        named = [found[1] for found in peers if found]
        assert len(named) == len(set(named)), named
