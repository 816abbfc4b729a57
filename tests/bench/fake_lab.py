"""A lab without brokers: every run of the driver gives the sample of its subject."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

from bench.judgement import alternate
from bench.lab import Sizes
from bench.processes import MeasurementFailed

SIZES = Sizes(
    rounds=1,
    small_megabytes=300,
    large_megabytes=800,
    consume_megabytes=1_000,
    latency_records=4_000,
    e2e_seconds=8,
    raw_seconds=3.0,
    backlog_gb=(1, 20),
    idle_topics=2_000,
    idle_connections=15_000,
    spark_records=5_000_000,
)


class FakeLab:
    """Samples by the name of a subject; `asked` is what the driver was asked for."""

    sizes = SIZES

    def __init__(self, **samples):
        self._samples = samples
        self.asked = []
        self.nothing_to_consume = False

    @property
    def rival(self):
        return "kafka" if "kafka" in self._samples else ""

    def shared(self, name):
        return SimpleNamespace(name=name, address=None)

    @contextmanager
    def topic(self, broker, *, flush="os"):
        yield "topic"

    def qbench(self, broker, topic, mode, *arguments):
        self.asked.append((mode, *arguments))
        if mode == "consume" and self.nothing_to_consume:
            raise MeasurementFailed("nothing to consume")
        return dict(self._samples[broker.name])

    def beside_rival(self, measuring):
        return self.compare(measuring("tidemill"), measuring(self.rival) if self.rival else None)

    def compare(self, ours, theirs):
        return alternate(self.sizes.rounds, ours, theirs)
