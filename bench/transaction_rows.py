"""Transactions: committed one after the other by one producer, against Kafka in the same run.

Kafka flushes nothing before an ack, so ours has flush=os for the records. The state of transactions
and its topic have the broker's defaults on both sides.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.judgement import Bar, Outcome, Sample, column
from bench.lab import PARTITIONS, Lab

__all__ = ["commits", "per_transaction"]

RECORD_BYTES = 100
TRANSACTIONS_PER_LATENCY_RECORD = 0.25
LARGE_TRANSACTION_RECORDS = 100
"""From so many on a rate is one of records; below it, of transactions."""


def commits(lab: Lab, row: str, title: str, *, records: int, bar: Bar) -> list[Outcome]:
    """Commit transactions of so many records, an equal part of them in each of four partitions."""
    of_ours, of_theirs = lab.beside_rival(lambda name: _committing(lab, name, records))
    against = lab.rival if of_theirs else ""
    name, scale, unit = _rate(records)
    return [
        Outcome(
            row=row,
            title=title,
            unit=unit,
            ours=column(of_ours, name, scale),
            theirs=column(of_theirs, name, scale),
            against=against,
            bar=bar,
            cpu_ours=column(of_ours, "cpu_per_million"),
            cpu_theirs=column(of_theirs, "cpu_per_million"),
        ),
        Outcome(
            row=row,
            title=f"{title}, p99 of one",
            unit="ms",
            ours=column(of_ours, "p99_us", 1e-3),
            theirs=column(of_theirs, "p99_us", 1e-3),
            against=against,
        ),
    ]


def _rate(records: int) -> tuple[str, float, str]:
    """The measure that a row is about, its scale and its unit."""
    if records >= LARGE_TRANSACTION_RECORDS:
        return "records_per_s", 1e-6, "M rec/s"
    return "transactions_per_s", 1.0, "txn/s"


def _committing(lab: Lab, name: str, records: int) -> Callable[[], Sample]:
    assert records % PARTITIONS == 0, "each partition gets the same part"
    count = per_transaction(lab.sizes.latency_records, records)

    def measure() -> Sample:
        broker = lab.shared(name)
        with lab.topic(broker) as topic:
            linger = "linger.ms=0"  # a commit waits for nothing more
            sample = lab.qbench(broker, topic, "transactions", count, records, RECORD_BYTES, linger)
        events = sample["n"] * (records if records >= LARGE_TRANSACTION_RECORDS else 1)
        return {**sample, "cpu_per_million": sample["cpu_s"] / events * 1e6}

    return measure


def per_transaction(latency_records: int, records: int) -> int:
    """How many transactions one sample has: fewer of large ones, which take longer each."""
    share = TRANSACTIONS_PER_LATENCY_RECORD if records >= LARGE_TRANSACTION_RECORDS else 1.0
    return max(1, int(latency_records * share))
