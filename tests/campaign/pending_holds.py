"""Many held records of one partition, through a restart and through a failover.

    python -m tests.campaign.pending_holds --records 200000 [--deliver-in SECONDS] [--json]

Three brokers hold so many records. The leader is killed, then all brokers are, and come back. Each
time a new hold that is due at once must come, which shows that the whole book was found again.
Records from all over the log are cancelled, which works only for what is held. With --deliver-in
all others are due so long after the start: each must come once, none early.

Progress goes to stderr, the summary to stdout; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, time

import confluent_kafka

from tests.campaign.hold_clients import DeliveryWatch, HeldSend, leader_of, send_held
from tests.campaign.summary import print_summary
from tests.support.clients import DEADLINE_S
from tests.support.topics import create_replicated
from tidemill.testing.broker_process import BrokerProcess

__all__ = ["PendingRun", "PendingSummary"]

TOPIC = "later"
BROKERS = 3
CANCELLED = 50
PROBES = 2
FAR_MS = 24 * 3_600_000
PROBE_S_MAX = 600.0
SHOWN_EVERY = 10


@dataclass(slots=True)
class PendingSummary:
    """What a run has shown."""

    records: int
    sent: int = 0
    send_s: float = 0.0
    failover_s: float = 0.0
    """From the kill of the leader to the next release, by another broker."""
    restart_s: float = 0.0
    """From a kill of all brokers to the next release."""
    leader_mb_empty: float = 0.0
    """Anonymous memory of the leader before anything was held."""
    leader_mb_full: float = 0.0
    leader_mb_restarted: float = 0.0
    cancelled: int = 0
    delivered: int = 0
    deliver_s: float = 0.0
    """From the due time to the last one."""
    violations: list[str] = field(default_factory=list)


class PendingRun:
    """One run against three brokers in a folder."""

    def __init__(self, folder: Path, records: int, *, delivers_in_s: float | None) -> None:
        self._records = records
        self._delivers_in_s = delivers_in_s
        self.summary = PendingSummary(records)
        settings = (f"tidemill.store.file={folder / 'store'}", "min.insync.replicas=2")
        self._brokers = [
            BrokerProcess(folder / f"broker-{number}", f"node.id={number}", *settings).start()
            for number in range(BROKERS)
        ]
        self._bootstrap = ",".join(broker.bootstrap for broker in self._brokers)
        self._probes = 0
        limit = {"tidemill.delay.max.pending": str(records + PROBES)}
        create_replicated(self._bootstrap, TOPIC, replication=BROKERS, config=limit)

    def run(self) -> PendingSummary:
        summary = self.summary
        summary.leader_mb_empty = self._leader_mb()
        watch = DeliveryWatch(self._bootstrap, TOPIC)
        try:
            due_ms, tickets = self._fill()
            summary.leader_mb_full = self._leader_mb()
            summary.failover_s = self._fail_over(watch)
            summary.restart_s = self._restart_all(watch)
            summary.leader_mb_restarted = self._leader_mb()
            kept = self._cancel_some(tickets)
            if self._delivers_in_s is not None:
                self._await_all(watch, kept, due_ms)
            self._check(watch, kept, due_ms)
        finally:
            watch.stop()
            for broker in self._brokers:
                broker.stop()
        return summary

    # --- steps -----------------------------------------------------------------------------------

    def _fill(self) -> tuple[int, dict[bytes, int]]:
        """Hold all of them; when they are due, and their tickets."""
        wait_ms = FAR_MS if self._delivers_in_s is None else int(self._delivers_in_s * 1000)
        due_ms = int(time() * 1000) + wait_ms
        started = monotonic()
        tickets = send_held(self._bootstrap, TOPIC, self._sends(due_ms))
        self.summary.sent = len(tickets)
        self.summary.send_s = round(monotonic() - started, 1)
        if len(tickets) < self._records:
            self.summary.violations.append(f"{self._records - len(tickets)} were not taken")
        return due_ms, tickets

    def _sends(self, due_ms: int) -> Iterator[HeldSend]:
        header = "tidemill.deliver-at", b"%d" % due_ms
        part = max(1, self._records // SHOWN_EVERY)
        for number in range(self._records):
            if number % part == 0:
                _show(f"sent {number} of {self._records}")
            yield HeldSend(b"%d" % number, header)

    def _fail_over(self, watch: DeliveryWatch) -> float:
        _show("the leader is killed")
        leader = self._brokers[leader_of(self._bootstrap, TOPIC)]
        killed_at = monotonic()
        leader.kill()
        seconds = self._probe(watch, killed_at)
        leader.start()
        return seconds

    def _restart_all(self, watch: DeliveryWatch) -> float:
        _show("all brokers are killed and started again")
        killed_at = monotonic()
        for broker in self._brokers:
            broker.kill()
        for broker in self._brokers:
            broker.spawn()
        for broker in self._brokers:
            broker.wait_ready()
        return self._probe(watch, killed_at)

    def _probe(self, watch: DeliveryWatch, since: float) -> float:
        """Hold a record that is due at once; how long after `since` it came."""
        self._probes += 1
        value = b"probe %d" % self._probes
        probe = HeldSend(value, ("tidemill.delay-ms", b"1"))
        if not send_held(self._bootstrap, TOPIC, [probe]):
            self.summary.violations.append(f"{value.decode()} was not taken")
        elif not watch.wait_for([value], PROBE_S_MAX):
            self.summary.violations.append(f"{value.decode()} did not come")
        return round(monotonic() - since, 1)

    def _cancel_some(self, tickets: dict[bytes, int]) -> set[bytes]:
        """Cancel some from all over the log; what is still to come."""
        _show("some are cancelled")
        kept = set(tickets)
        producer = confluent_kafka.Producer({"bootstrap.servers": self._bootstrap})
        for value in list(tickets)[:: max(1, len(tickets) // CANCELLED)]:
            refusals: list[object] = []
            producer.produce(
                TOPIC,
                b"",
                partition=0,
                headers=[
                    ("tidemill.command", b"cancel"),
                    ("tidemill.target", b"%d" % tickets[value]),
                ],
                on_delivery=lambda error, _message, refusals=refusals: refusals.append(error),
            )
            producer.flush(DEADLINE_S)
            if any(one is None for one in refusals):  # KafkaError cannot be compared with None
                kept.discard(value)
                self.summary.cancelled += 1
            else:
                self.summary.violations.append(f"ticket {tickets[value]}: {refusals}")
        return kept

    def _await_all(self, watch: DeliveryWatch, kept: set[bytes], due_ms: int) -> None:
        left_s = due_ms / 1000 - time()
        _show(f"all are due in {left_s:.0f} s")
        threading.Event().wait(max(0.0, left_s))
        watch.wait_for(kept, PROBE_S_MAX)
        self.summary.deliver_s = round(time() - due_ms / 1000, 1)

    # --- checks ----------------------------------------------------------------------------------

    def _check(self, watch: DeliveryWatch, kept: set[bytes], due_ms: int) -> None:
        summary, violations = self.summary, self.summary.violations
        came = {value: count for value, count in watch.came.items() if value in kept}
        summary.delivered = len(came)
        due_s = monotonic() + due_ms / 1000 - time()
        early = [value for value in came if watch.first_s[value] < due_s]
        twice = [value for value, count in watch.came.items() if count > 1]
        foreign = [
            value for value in watch.came if value not in kept and not value.startswith(b"probe")
        ]
        if early:
            violations.append(f"I31: {len(early)} came early")
        if twice:
            violations.append(f"I32: {len(twice)} came twice")
        if foreign:
            violations.append(f"I32: {len(foreign)} were cancelled and came")
        if self._delivers_in_s is not None and len(came) < len(kept):
            violations.append(f"I32: {len(kept) - len(came)} did not come")

    def _leader_mb(self) -> float:
        leader = self._brokers[leader_of(self._bootstrap, TOPIC)]
        for line in Path(f"/proc/{leader.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return round(int(line.split()[1]) / 1024, 1)
        return 0.0


def _show(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hold many records over restarts.")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument(
        "--deliver-in", type=float, metavar="SECONDS", help="wait for all; else nothing is due"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidemill-holds-") as name:
        run = PendingRun(Path(name), options.records, delivers_in_s=options.deliver_in)
        summary = asdict(run.run())
    return print_summary(summary, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
