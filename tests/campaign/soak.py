"""Three brokers under a steady load for hours. Nothing is done to them: nothing may happen.

    python -m tests.campaign.soak --hours 2 [--rate 300] [--summary FILE] [--plot FILE] [--json]

An idempotent producer with acks=all and a transactional one write; a group of each protocol reads
and commits. Segments are rolled and deleted meanwhile. Every record is followed from its send to
both groups (I1-I5, I21). What is an event: an election, an in-sync set that shrinks, a broker that
starts again, a rebalance, a warning in the log. Memory must not grow for ever (I36).

SIGTERM ends it early, with the summary so far; `--summary` has it after every sample, too, and the
brokers' log is put beside it if anything happened. Progress goes to stderr, the summary to stdout;
the exit code is 1 if something happened or was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.campaign.soak_clients import GroupReader, SteadyProducer, SteadyTransactions
from tests.campaign.soak_ledger import Log, SoakLedger
from tests.campaign.soak_plot import draw
from tests.campaign.soak_summary import SoakSummary, quantile_ms
from tests.campaign.soak_watch import ClusterWatch
from tests.campaign.transactional_client import QUIET
from tests.support.clients import DEADLINE_S
from tests.support.topics import create_replicated
from tidemill.core.errors import TidemillError
from tidemill.testing.cluster_process import ClusterProcess

__all__ = ["SoakRun"]

BROKERS: Final = 3
ORDERS, LEDGER = "soak-orders", "soak-ledger"
LOGS: Final[list[Log]] = [(ORDERS, index) for index in range(6)]
TRANSACTED: Final[list[Log]] = [(LEDGER, index) for index in range(3)]
PROTOCOLS: Final = ("classic", "consumer")
TRANSACTIONS_PER_SECOND: Final = 0.5
POLL_S: Final = 0.1
CATCH_UP_S: Final = 120.0
EVENTS_MAX: Final = 1000
SEGMENTS_KEPT: Final = 8
BAR_WIDTH: Final = 30


class SoakRun:
    """One cluster in a folder, its clients and its watch."""

    def __init__(
        self,
        folder: Path,
        *,
        rate: float,
        sample_s: float,
        retention_s: float = 600.0,
        over: threading.Event | None = None,
    ) -> None:
        """`rate` is in records a second; records are deleted after about `retention_s`.

        `over` ends the run early.
        """
        self.summary = SoakSummary(rate)
        self._over = over or threading.Event()
        self._sample_s = sample_s
        self._latencies: Counter[int] = Counter()
        self._ledger = SoakLedger(PROTOCOLS)
        self.cluster = ClusterProcess(
            folder / "data",
            "metrics.listen=127.0.0.1:0",
            f"log.retention.check.interval.ms={int(retention_s * 100)}",
            f"offsets.topic.segment.bytes={1 << 20}",
            brokers=BROKERS,
            new_session=True,
        ).start()
        try:
            self._create_topics(rate, retention_s)
            self._start_clients(rate)
            self._watch = ClusterWatch(self.cluster, folder / "data", BROKERS)
        except BaseException:
            self.cluster.stop()
            raise

    def _start_clients(self, rate: float) -> None:
        bootstrap, topics = self.cluster.bootstrap, (ORDERS, LEDGER)
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)
        self._producer = SteadyProducer(bootstrap, LOGS, self._ledger, per_second=rate)
        self._transactions = SteadyTransactions(
            bootstrap, TRANSACTED, self._ledger, per_second=TRANSACTIONS_PER_SECOND
        )
        self._readers = [
            GroupReader(bootstrap, topics, self._ledger, protocol=one) for one in PROTOCOLS
        ]
        for client in (*self._readers, self._producer, self._transactions):
            client.start()
        self._wait_until(lambda: all(self._ledger.read.values()), "a group reads nothing")
        self._wait_until(lambda: self._transactions.committed > 0, "nothing is committed")

    def _create_topics(self, rate: float, retention_s: float) -> None:
        # So many bytes a second come to a partition; a record and its part of a batch.
        filled = int(rate * 250 * retention_s / len(LOGS) / SEGMENTS_KEPT)
        config = {
            "min.insync.replicas": "2",
            "retention.ms": str(int(retention_s * 1000)),
            "segment.bytes": str(max(1024, filled)),
            "segment.ms": str(int(retention_s * 1000)),
        }
        for topic, logs in ((ORDERS, LOGS), (LEDGER, TRANSACTED)):
            create_replicated(self.cluster.bootstrap, topic, partitions=len(logs), config=config)

    def run(
        self,
        seconds: float,
        *,
        until: Callable[[SoakSummary], bool] = lambda _: True,
        sampled: Callable[[SoakSummary], None] = lambda _: None,
    ) -> SoakSummary:
        """For so long and `until` holds; `sampled` gets the summary after every sample."""
        started = monotonic()
        try:
            while not self._over.is_set():
                self._try_sample(monotonic() - started)
                sampled(self.summary)
                if monotonic() - started >= seconds and until(self.summary):
                    self.summary.is_whole = True
                    break
                left_s = started + seconds - monotonic()
                self._over.wait(min(self._sample_s, left_s) if left_s > 0 else self._sample_s)
            self._end()
            self._try_sample(monotonic() - started)
        finally:
            code = self.cluster.stop()
        if code:
            self._ledger.fail(f"the brokers ended with exit code {code}")
        self._sum_up()
        sampled(self.summary)
        return self.summary

    # --- steps -----------------------------------------------------------------------------------

    def _try_sample(self, seconds: float) -> None:
        """A broker that does not answer is an event; the run goes on."""
        for look in (self._note_events, lambda: self._sample(seconds)):
            try:
                look()
            except (OSError, TidemillError, confluent_kafka.KafkaException) as failure:
                self._note([f"no sample: {type(failure).__name__}: {failure}"])
        self._sum_up()

    def _note(self, events: Sequence[str]) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        room = EVENTS_MAX - len(self.summary.events)
        self.summary.events += [f"{now}: {one}" for one in events[:room]]

    def _note_events(self) -> None:
        for event in self._watch.events():
            self._note([event])

    def _sample(self, seconds: float) -> None:
        brokers = [one._asdict() for one in self._watch.sample()]
        latencies = self._producer.take_latencies()
        self._latencies += latencies
        self._ledger.check()
        self.summary.records_deleted = self._deleted()
        self.summary.samples.append(
            {
                "seconds": round(seconds, 1),
                "load": round(os.getloadavg()[0], 2),
                "acknowledged": self._ledger.acknowledged,
                "ack_ms_p50": quantile_ms(latencies, 0.5),
                "ack_ms_p99": quantile_ms(latencies, 0.99),
                "ack_ms_longest": quantile_ms(latencies, 1.0),
                "brokers": brokers,
            }
        )

    def _end(self) -> None:
        """Stop the writers, and let both groups read what there is."""
        self._producer.stop()
        self._transactions.stop()
        deadline = monotonic() + CATCH_UP_S
        while self._ledger.pending() and self._are_reading() and monotonic() < deadline:
            threading.Event().wait(POLL_S)
        for reader in self._readers:
            if reader.assignments != 1:
                self._note([f"group {reader.name} was assigned {reader.assignments} times"])
            reader.stop()
        self._ledger.check_all_seen()

    def _are_reading(self) -> bool:
        return all(reader.is_alive() for reader in self._readers)

    def _sum_up(self) -> None:
        ledger, summary = self._ledger, self.summary
        summary.sent, summary.acknowledged = ledger.sent, ledger.acknowledged
        summary.read = dict(ledger.read)
        summary.committed = self._transactions.committed
        summary.aborted = self._transactions.aborted
        for share, name in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "longest")):
            summary.ack_ms[name] = quantile_ms(self._latencies, share)
        summary.sum_up_brokers()
        summary.violations = [*ledger.violations, *summary.growth()]

    def _deleted(self) -> int:
        """Records of the plain topic that retention has removed."""
        places = [confluent_kafka.TopicPartition(*log) for log in LOGS]
        asked = self._admin.list_offsets(dict.fromkeys(places, OffsetSpec.earliest()))
        return sum(found.result(DEADLINE_S).offset for found in asked.values())

    def _wait_until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = monotonic() + CATCH_UP_S
        while not is_so() and not self._over.is_set():
            broken = self._ledger.violations
            assert not broken, f"{otherwise}: {broken}"
            assert monotonic() < deadline, otherwise
            threading.Event().wait(POLL_S)


def _show_progress(summary: SoakSummary, seconds: float) -> None:
    done_s = min(summary.seconds, seconds)
    bar = "#" * int(BAR_WIDTH * done_s / seconds)
    found = f"{len(summary.events)} events, {len(summary.violations)} promises broken"
    line = f"[{bar:<{BAR_WIDTH}}] {done_s:.0f}/{seconds:.0f} s, {found}"
    is_shown = len(summary.samples) % max(1, int(seconds / 100)) == 0
    if sys.stderr.isatty():
        print(f"\r{line}", end="   ", flush=True, file=sys.stderr)
    elif is_shown or summary.is_whole:
        print(line, flush=True, file=sys.stderr)


def _write(path: Path, facts: dict[str, Any]) -> None:
    """Replace the file whole: the run may be killed at any time."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(facts, indent=1))
    beside.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Watch three brokers that nobody disturbs.")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=300.0, help="records a second")
    parser.add_argument("--sample", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--summary", type=Path, help="write JSON there after every sample")
    parser.add_argument("--plot", type=Path, help="memory and latency as SVG or PNG")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    seconds = 3600 * options.hours

    def sampled(summary: SoakSummary) -> None:
        _show_progress(summary, seconds)
        if options.summary is not None:
            _write(options.summary, asdict(summary))

    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with tempfile.TemporaryDirectory(prefix="tidemill-soak-") as name:
        run = SoakRun(Path(name), rate=options.rate, sample_s=options.sample, over=over)
        summary = run.run(seconds, sampled=sampled)
        if options.summary is not None and (summary.events or summary.violations):
            shutil.copy(Path(name) / "data.log", options.summary.with_suffix(".log"))
    if options.plot is not None and not draw(summary, options.plot):
        print("no plot: matplotlib is not installed (requirements/bench.txt)", file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(summary), indent=2))
    else:
        summary.print()
    return 1 if summary.violations or summary.events else 0


if __name__ == "__main__":
    sys.exit(main())
