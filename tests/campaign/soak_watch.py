"""What brokers do by themselves: elections, shrinking in-sync sets, restarts, memory, stalls."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, final

from bench.judgement import histogram_quantile
from tests.support.clients import DEADLINE_S
from tests.support.coroutines import run
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.metadata_cache import TopicInfo
from tidemill.core.config.endpoint import parse_endpoint
from tidemill.core.net import AsyncioNet
from tidemill.metadata.image.nodes import CONTROLLER_EPOCH
from tidemill.testing.cluster_process import ClusterProcess

__all__ = ["BrokerSample", "ClusterWatch"]

_IN_SYNC = re.compile(r": in sync (?P<before>.+) -> (?P<after>.+)$")
_NUMBER = re.compile(r"\d+")
_TROUBLE = re.compile(
    r"\b(WARNING|ERROR|CRITICAL)\b|^\[supervisor\] broker \d+ (ended|is ready ag)"
)
_METRIC = re.compile(r"^(tidemill_\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_BUCKET = re.compile(r'le="([^"]+)"')
_FAULTS: Final = ("tidemill_unhandled_errors_total", "tidemill_flush_failures_total")


class BrokerSample(NamedTuple):
    """One broker at one moment."""

    rss_anon_mb: float
    descriptors: int
    cpu_s: float
    log_mb: float
    stall_s_p999: float | None
    """Since its start, as an upper bound."""
    stalls_over_131_ms: float
    rebalances: float


@final
class ClusterWatch:
    """Compares a cluster with what it was when the watch began."""

    def __init__(self, cluster: ClusterProcess, data_dir: Path, brokers: int) -> None:
        self._cluster = cluster
        self._store = data_dir / "coord.db"
        self._log_path = data_dir.with_name(f"{data_dir.name}.log")
        self._log_at = self._log_path.stat().st_size
        for broker in range(brokers):
            cluster.wait_log(_page_pattern(broker))
        self._pids = [cluster.broker_pid(one) for one in range(brokers)]
        self._leaders: dict[str, tuple[int, int]] = {}
        """The epoch and the leader of each partition."""
        self._short: dict[str, tuple[int, ...]] = {}
        """In-sync sets that were smaller than the replicas when last seen."""
        self._controller_epoch = self._read_controller_epoch()
        self._faults: dict[tuple[int, str], float] = {}
        self._begun_with = [*self._changes()]
        """In-sync sets that are small already."""

    def events(self) -> Iterator[str]:
        """What has happened since the last call; nothing of it was asked for."""
        yield from self._logged()
        yield from self._restarts()
        epoch = self._read_controller_epoch()
        if epoch != self._controller_epoch:
            yield f"controller epoch {self._controller_epoch} -> {epoch}"
            self._controller_epoch = epoch
        yield from self._begun_with
        self._begun_with.clear()
        yield from self._changes()
        yield from self._faults_counted()

    def sample(self) -> Iterator[BrokerSample]:
        for broker, pid in enumerate(self._pids):
            yield _sample(pid, self._read_page(broker))

    def _faults_counted(self) -> Iterator[str]:
        """Counters that a bug or a broken disk would raise."""
        for broker in range(len(self._pids)):
            page = self._read_page(broker)
            for name in _FAULTS:
                found = sum(value for metric, _, value in page if metric == name)
                if found > self._faults.get((broker, name), 0.0):
                    yield f"broker {broker}: {name} is {found:.0f}"
                self._faults[broker, name] = found

    def _read_page(self, broker: int) -> list[tuple[str, str, float]]:
        # Another address after a restart.
        address = re.findall(_page_pattern(broker), self._cluster.log(), re.MULTILINE)[-1]
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as page:
            text = page.read().decode()
        return [(name, labels, float(value)) for name, labels, value in _METRIC.findall(text)]

    def _logged(self) -> Iterator[str]:
        """In-sync sets that shrank between two samples too; and every warning."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_at)
            found = log.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._log_at += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if _has_shrunk(line) or _TROUBLE.search(line):
                yield line

    def _restarts(self) -> Iterator[str]:
        for broker, pid in enumerate(self._pids):
            found = self._cluster.broker_pid(broker)
            if found != pid:
                yield f"broker {broker} was started again"
                self._pids[broker] = found

    def _read_controller_epoch(self) -> int:
        with closing(sqlite3.connect(f"file:{self._store}?mode=ro", uri=True)) as store:
            asked = "SELECT value FROM nodes WHERE path = ?"
            (value,) = store.execute(asked, (CONTROLLER_EPOCH,)).fetchone()
        return int(json.loads(value)["value"])

    def _topics(self) -> list[TopicInfo]:
        addresses = [parse_endpoint(one, key="bootstrap") for one in self._cluster.addresses]

        async def ask() -> list[TopicInfo]:
            async with ClusterClient(AsyncioNet(), addresses, client_id="soak") as cluster:
                await cluster.refresh(None)
                return list(cluster.metadata.topics.values())

        return run(ask())

    def _changes(self) -> Iterator[str]:
        for topic in self._topics():
            yield from self._changes_of(topic)

    def _changes_of(self, topic: TopicInfo) -> Iterator[str]:
        for index, one in topic.partitions.items():
            name = f"{topic.name}-{index}"
            epoch, leader = self._leaders.get(name, (one.leader_epoch, one.leader))
            if one.leader_epoch != epoch or one.leader != leader:
                yield f"{name}: leader {leader}, epoch {epoch} -> {one.leader}, {one.leader_epoch}"
            self._leaders[name] = one.leader_epoch, one.leader
            isr = tuple(sorted(one.isr))
            is_short = len(isr) < len(one.replicas)
            if is_short and self._short.get(name) != isr:
                yield f"{name}: in sync {list(isr)} of {one.replicas}"
            self._short[name] = isr


def _page_pattern(broker: int) -> str:
    return rf"^\[broker {broker}\] .*metrics on (\S+)$"


def _sample(pid: int, page: list[tuple[str, str, float]]) -> BrokerSample:
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous = re.search(r"^RssAnon:\s+(\d+)", status, re.MULTILINE)
    assert anonymous is not None
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    buckets: dict[float, float] = {}
    for name, labels, value in page:
        bound = _BUCKET.search(labels)
        if name == "tidemill_loop_stall_seconds_bucket" and bound is not None:
            buckets[float(bound[1])] = value
    quick = max((count for bound, count in buckets.items() if bound <= 0.14), default=0.0)
    return BrokerSample(
        round(int(anonymous[1]) / 1024, 1),
        len(os.listdir(f"/proc/{pid}/fd")),
        (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
        round(_sum(page, "tidemill_log_bytes") / 1e6, 2),
        histogram_quantile(buckets, 0.999),
        max(buckets.values(), default=0.0) - quick,
        _sum(page, "tidemill_group_rebalances_total"),
    )


def _has_shrunk(line: str) -> bool:
    found = _IN_SYNC.search(line)
    if found is None:
        return False
    return len(_NUMBER.findall(found["after"])) < len(_NUMBER.findall(found["before"]))


def _sum(page: list[tuple[str, str, float]], metric: str) -> float:
    return sum(value for name, _, value in page if name == metric)
