"""Kills real brokers with SIGKILL around commits, and checks what their clients saw (I18-I23).

    python -m tests.campaign.transaction_kills --kills 1000 [--minutes 30] [--brokers 3] [--json]

Producers of librdkafka write transactions, a reader follows what is committed. A broker is killed
within milliseconds of the end of a transaction, and comes back. The next kill waits until something
was committed again. Every few kills the producers pause, every transaction must be decided soon,
and a new reader must find all of each committed transaction and nothing else.

Progress goes to stderr, the summary to stdout; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic
from typing import Protocol

import confluent_kafka

from tests.campaign.summary import print_summary
from tests.campaign.transactional_client import CommittedFollower, TransactionalClient
from tests.support.clients import DEADLINE_S
from tests.support.topics import create_replicated, wait_until_decided
from tests.support.transaction_history import Outcome, TransactionHistory
from tidemill.core.ids import TopicPartition
from tidemill.testing.broker_process import BrokerProcess
from tidemill.wire.records import Record

__all__ = ["KillRun", "Summary"]

TOPIC = "ledger"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(3)]
CLIENTS = 3
KILLS_PER_CHECK = 20
DELAY_S_MAX = 0.04
"""From the moment at which a producer is about to end a transaction to the kill."""
RECOVERY_S_MAX = 90.0
POLL_S = 0.05
BAR_WIDTH = 30


class Victim(Protocol):
    """Brokers that can be killed."""

    @property
    def bootstrap(self) -> str: ...

    def kill_one(self, rng: Random) -> None:
        """SIGKILL for one of them; it is back when this returns."""
        ...

    def stop(self) -> int: ...


class OneNode:
    """A single broker."""

    def __init__(self, folder: Path) -> None:
        self._broker = BrokerProcess(folder / "data").start()

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def kill_one(self, _rng: Random) -> None:
        self._broker.kill()
        self._broker.start()

    def stop(self) -> int:
        return self._broker.stop()


class SeveralNodes:
    """Brokers that share a store. Without a supervisor, which would give up after a few kills."""

    def __init__(self, folder: Path, brokers: int) -> None:
        settings = (f"tidemill.store.file={folder / 'store'}", "min.insync.replicas=2")
        self._brokers = [
            BrokerProcess(folder / f"broker-{number}", f"node.id={number}", *settings)
            for number in range(brokers)
        ]
        for broker in self._brokers:
            broker.start()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self._brokers)

    def kill_one(self, rng: Random) -> None:
        broker = rng.choice(self._brokers)
        broker.kill()
        broker.start()

    def stop(self) -> int:
        return max(broker.stop() for broker in self._brokers)


@dataclass(slots=True)
class Summary:
    """What a run has shown."""

    brokers: int
    seed: int
    kills: int = 0
    checks: int = 0
    seconds: float = 0.0
    committed: int = 0
    aborted: int = 0
    unknown: int = 0
    records_read: int = 0
    next_commit_s_median: float = 0.0
    """From a kill to the next commit."""
    next_commit_s_longest: float = 0.0
    violations: list[str] = field(default_factory=list)


class KillRun:
    """One run against brokers in a folder of its own."""

    def __init__(self, victim: Victim, *, brokers: int, seed: int) -> None:
        self._victim = victim
        self._rng = Random(seed)
        self._history = TransactionHistory()
        self._recoveries_s: list[float] = []
        self.summary = Summary(brokers, seed)
        create_replicated(
            victim.bootstrap, TOPIC, partitions=len(PARTITIONS), replication=min(3, brokers)
        )
        self._clients = [
            TransactionalClient(
                number,
                lambda: victim.bootstrap,
                self._history,
                PARTITIONS,
                Random(self._rng.random()),
            )
            for number in range(CLIENTS)
        ]
        self._follower = CommittedFollower(victim.bootstrap, self._history, PARTITIONS)

    def run(self, kills: int, *, seconds_max: float = float("inf")) -> Summary:
        """Kill that often, or until the time is over or a promise is broken."""
        started = monotonic()
        self._follower.start()
        for client in self._clients:
            client.start()
        try:
            is_over = False
            while not is_over:
                self._kill()
                seconds = monotonic() - started
                is_over = self.summary.kills == kills or seconds > seconds_max
                if is_over or self.summary.kills % KILLS_PER_CHECK == 0:
                    self._check()
                _show_progress(self.summary.kills, kills, seconds)
        except AssertionError as broken:
            self.summary.violations.append(str(broken))
        finally:
            for client in self._clients:
                client.stop()
            self._follower.stop()
        return self._summed_up(monotonic() - started)

    def _kill(self) -> None:
        """Shortly after one of the clients has begun to end a transaction."""
        chosen = self._rng.choice(self._clients)
        chosen.ending.clear()
        chosen.ending.wait(DEADLINE_S)
        threading.Event().wait(self._rng.random() * DELAY_S_MAX)
        killed_at = monotonic()
        self._victim.kill_one(self._rng)
        self.summary.kills += 1
        while all(one.last_commit < killed_at for one in self._clients):
            self._check_alive()
            assert monotonic() < killed_at + RECOVERY_S_MAX, "I16: nothing is committed any more"
            threading.Event().wait(POLL_S)
        self._recoveries_s.append(monotonic() - killed_at)

    def _check_alive(self) -> None:
        for one in (*self._clients, self._follower):
            if one.failure is not None:
                raise AssertionError(f"{type(one.failure).__name__}: {one.failure}")

    def _check(self) -> None:
        """I18-I23: pause, wait until all is decided, and compare what a new reader finds."""
        for client in self._clients:
            client.pause()
        for client in self._clients:
            assert client.idle.wait(2 * RECOVERY_S_MAX), "a producer cannot end its transaction"
        self._check_alive()
        wait_until_decided(self._victim.bootstrap, TOPIC)
        found, ends = _read_all(self._victim.bootstrap)
        deadline = monotonic() + RECOVERY_S_MAX
        while any(self._follower.reached[one] < ends[one] for one in PARTITIONS):
            self._check_alive()
            assert monotonic() < deadline, f"I23: the reader stands at {self._follower.reached}"
            threading.Event().wait(POLL_S)
        self._history.check_final(found, {one: range(end) for one, end in ends.items()})
        self.summary.checks += 1
        for client in self._clients:
            client.go_on()

    def _summed_up(self, seconds: float) -> Summary:
        summary, sent = self.summary, self._history.sent
        summary.seconds = round(seconds, 1)
        summary.committed = sum(one.outcome is Outcome.COMMITTED for one in sent)
        summary.aborted = sum(one.outcome is Outcome.ABORTED for one in sent)
        summary.unknown = sum(one.outcome is Outcome.UNKNOWN for one in sent)
        summary.records_read = self._follower.records
        if self._recoveries_s:
            summary.next_commit_s_median = round(median(self._recoveries_s), 2)
            summary.next_commit_s_longest = round(max(self._recoveries_s), 2)
        return summary


def _read_all(
    bootstrap: str,
) -> tuple[dict[TopicPartition, list[Record]], dict[TopicPartition, int]]:
    """What a new reader of committed records finds, and where each partition ends."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "a new reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: dict[TopicPartition, list[Record]] = {one: [] for one in PARTITIONS}
    ends: dict[TopicPartition, int] = {}
    consumer.assign([confluent_kafka.TopicPartition(*one, 0) for one in PARTITIONS])
    deadline = monotonic() + RECOVERY_S_MAX
    try:
        while len(ends) < len(PARTITIONS):
            assert monotonic() < deadline, f"I23: a new reader reaches the end of {ends} only"
            message = consumer.poll(1.0)
            if message is None or message.topic() is None or message.partition() < 0:
                continue
            partition = TopicPartition(message.topic(), message.partition())
            if message.error() is None:
                found[partition].append(Record(message.value(), offset=message.offset()))
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ends[partition] = message.offset()
    finally:
        consumer.close()
    return found, ends


def _show_progress(done: int, total: int, seconds: float) -> None:
    left_s = seconds / done * (total - done)
    bar = "#" * (BAR_WIDTH * done // total)
    line = f"[{bar:<{BAR_WIDTH}}] {done}/{total} kills, {left_s:.0f} s left"
    if sys.stderr.isatty():
        print(f"\r{line}", end="   \n" if done == total else "   ", flush=True, file=sys.stderr)
    elif done == total or done % max(1, total // 10) == 0:
        print(line, flush=True, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Kill brokers around commits.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=600.0, help="end earlier after that time")
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of kills and of what clients do")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidemill-kills-") as name:
        folder, many = Path(name), options.brokers > 1
        victim: Victim = SeveralNodes(folder, options.brokers) if many else OneNode(folder)
        try:
            run = KillRun(victim, brokers=options.brokers, seed=options.seed)
            summary = asdict(run.run(options.kills, seconds_max=60 * options.minutes))
        finally:
            with suppress(ProcessLookupError):
                victim.stop()
    return print_summary(summary, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
