"""Latency of an ack, of an ack that waits for the disk, and from producer to consumer."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.judgement import Bar, Held, Outcome, Sample, column
from bench.lab import Lab

__all__ = ["ack_latency", "end_to_end", "fdatasync_us", "flush_latency"]

SIZE = 100
RATE = 1_000
FLUSH_BAR = Bar("<=", 0.3, Held.DIFFERENCE)
_PROBE_WRITES = 200
_PROBE_BYTES = 200  # about a batch of one record


def ack_latency(lab: Lab, row: str, title: str, *, p50: Bar, p99: Bar) -> list[Outcome]:
    """One record at a time, acks=1, without lingering."""

    def measuring(name: str) -> Callable[[], Sample]:
        return lambda: _ack_sample(lab, name, acks="1", flush="os")

    samples = lab.beside_rival(measuring)
    return _percentiles(row, title, samples, lab.rival, p50=p50, p99=p99)


def flush_latency(lab: Lab, row: str, title: str) -> list[Outcome]:
    """acks=all on disk, against a bare fdatasync of the same file system between the samples."""
    ours, theirs = lab.compare(
        lambda: _ack_sample(lab, "tidemill", acks="all", flush="group"),
        lambda: {"p50_us": statistics.median(fdatasync_us(lab.directory / "probe"))},
    )
    return [
        Outcome(
            row=row,
            title=f"{title} p50",
            unit="ms",
            ours=column(ours, "p50_us", 1e-3),
            theirs=column(theirs, "p50_us", 1e-3),
            against="fdatasync",
            bar=FLUSH_BAR,
        ),
        Outcome(row=row, title=f"{title} p99", unit="ms", ours=column(ours, "p99_us", 1e-3)),
    ]


def end_to_end(lab: Lab, row: str, title: str, *, p50: Bar, p99: Bar) -> list[Outcome]:
    """From the call of the producer to the record in the consumer, at a fixed, low rate."""

    def measuring(name: str) -> Callable[[], Sample]:
        def measure() -> Sample:
            broker = lab.shared(name)
            with lab.topic(broker) as topic:
                seconds = lab.sizes.e2e_seconds
                return lab.qbench(broker, topic, "e2e", RATE, seconds, SIZE, 1, "linger.ms=0")

        return measure

    samples = lab.beside_rival(measuring)
    return _percentiles(row, title, samples, lab.rival, p50=p50, p99=p99)


def fdatasync_us(path: Path) -> list[float]:
    """Append the size of a small batch and flush it, as the broker must before it answers."""
    took = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(_PROBE_WRITES):
            began = time.perf_counter()
            os.write(descriptor, bytes(_PROBE_BYTES))
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return [seconds * 1e6 for seconds in took]


def _ack_sample(lab: Lab, name: str, *, acks: str, flush: str) -> Sample:
    broker = lab.shared(name)
    with lab.topic(broker, flush=flush) as topic:
        count = lab.sizes.latency_records
        return lab.qbench(broker, topic, "latency", count, SIZE, acks, "linger.ms=0")


def _percentiles(
    row: str,
    title: str,
    samples: tuple[list[Sample], list[Sample]],
    rival: str,
    *,
    p50: Bar,
    p99: Bar,
) -> list[Outcome]:
    ours, theirs = samples
    return [
        Outcome(
            row=row,
            title=f"{title} {share}",
            unit="ms",
            ours=column(ours, f"{share}_us", 1e-3),
            theirs=column(theirs, f"{share}_us", 1e-3),
            against=rival if theirs else "",
            bar=bar,
        )
        for share, bar in (("p50", p50), ("p99", p99))
    ]
