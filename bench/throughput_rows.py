"""Rates: produce and consume through librdkafka, and the broker alone through the raw driver."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.judgement import (
    Bar,
    Outcome,
    Sample,
    column,
    histogram_quantile,
)
from bench.lab import PARTITIONS, Lab
from bench.metrics_page import Buckets, buckets_between, buckets_sum, loop_stalls, observations
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.raw_driver import BATCHES, drive

__all__ = [
    "ceiling",
    "consume",
    "loop_stall",
    "one_record_requests",
    "produce",
    "produce_flushed",
    "raw_batches",
]

STALL_SHARE = 0.999
STALL_OBSERVATIONS = 4_000
"""Enough that one in a thousand is more than one observation."""
STALL_RUNS_MAX = 100
STALL_SIZES = (100, 1_000)
FLUSH_BAR = Bar(">=", 0.5)
MULTIPLE_CONNECTIONS = 4


def produce(
    lab: Lab, row: str, title: str, *, size: int, acks: str, bar: Bar, codec: str = "none"
) -> list[Outcome]:
    """Produce records of one size until the last ack, against Kafka; ours with flush=os."""
    samples = lab.beside_rival(
        lambda name: _producing(lab, name, size=size, acks=acks, codec=codec)
    )
    return [_rate(row, title, size, samples, against=lab.rival, bar=bar)]


def ceiling(lab: Lab, row: str, title: str, *, size: int) -> list[Outcome]:
    """The null broker against Kafka: about the highest ratio that the driver allows."""
    nothing = _producing(lab, "nothing", size=size, acks="1")
    theirs = _producing(lab, "kafka", size=size, acks="1") if lab.has_kafka else None
    samples = lab.compare(nothing, theirs)
    return [_rate(row, title, size, samples, against="kafka", bar=None)]


def produce_flushed(lab: Lab, row: str, title: str, *, size: int) -> list[Outcome]:
    """acks=all on disk, against acks=all in the page cache, on the same broker.

    Against another revision both are on disk.
    """

    def flushing(name: str) -> Callable[[], Sample]:
        return _producing(lab, name, size=size, acks="all", flush="group")

    if lab.rival and not lab.has_kafka:
        samples = lab.beside_rival(flushing)
        return [_rate(row, title, size, samples, against=lab.rival, bar=None)]
    samples = lab.compare(flushing("tidemill"), _producing(lab, "tidemill", size=size, acks="all"))
    return [_rate(row, title, size, samples, against="flush=os", bar=FLUSH_BAR)]


def loop_stall(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """How late the event loop is while it flushes; enough runs to see one in a thousand."""
    found: Buckets = {}
    for size in itertools.islice(itertools.cycle(STALL_SIZES), STALL_RUNS_MAX):
        found = buckets_sum(found, _stalls_of_run(lab, size))
        lab.tick()
        if observations(found) >= STALL_OBSERVATIONS:
            break
    stall_s = histogram_quantile(found, STALL_SHARE)
    if stall_s is None:
        raise MeasurementFailed("the broker did not watch its event loop")
    note = f"{observations(found):.0f} observations; the upper bound of a bucket that doubles"
    return [Outcome(row=row, title=title, unit="ms", ours=(stall_s * 1e3,), bar=bar, note=note)]


def _stalls_of_run(lab: Lab, size: int) -> Buckets:
    """Measures only while records flow, not while the topic is created and deleted."""
    broker = lab.shared("tidemill")
    assert broker.metrics is not None
    with lab.topic(broker, flush="group") as topic:
        before = loop_stalls(broker.metrics)
        lab.qbench(broker, topic, "produce", lab.sizes.records(size), size, "all")
        return buckets_between(before, loop_stalls(broker.metrics))


def consume(lab: Lab, row: str, title: str, *, size: int, bar: Bar) -> list[Outcome]:
    """Consume a filled topic from its start, again and again."""
    count = lab.sizes.consume_megabytes * 1_000_000 // size
    with ExitStack() as topics:

        def reader(name: str) -> Callable[[], Sample]:
            broker = lab.shared(name)
            topic = topics.enter_context(lab.topic(broker))
            lab.qbench(broker, topic, "produce", count, size, 1)
            return lambda: _per_million(lab.qbench(broker, topic, "consume", count), "got")

        samples = lab.beside_rival(reader)
    return [_rate(row, title, size, samples, against=lab.rival, bar=bar)]


def one_record_requests(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """Requests with one record each, on one connection and on several."""
    return [
        _raw(lab, row, title, "one", connections=1, bar=bar),
        _raw(lab, row, title, "one", connections=MULTIPLE_CONNECTIONS, bar=None),
    ]


def raw_batches(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Larger batches without the client, so that librdkafka is not the bottleneck."""
    return [_raw(lab, row, title, batch, connections=2, bar=None) for batch in ("16k", "1m")]


def _producing(
    lab: Lab, name: str, *, size: int, acks: str, codec: str = "none", flush: str = "os"
) -> Callable[[], Sample]:
    count = lab.sizes.records(size)

    def measure() -> Sample:
        broker = lab.shared(name)
        with lab.topic(broker, flush=flush) as topic:
            codec_setting = f"compression.codec={codec}"
            sample = lab.qbench(broker, topic, "produce", count, size, acks, codec_setting)
        return _per_million(sample, "acked")

    return measure


def _raw(
    lab: Lab, row: str, title: str, batch: str, *, connections: int, bar: Bar | None
) -> Outcome:
    def measuring(name: str) -> Callable[[], Sample]:
        return lambda: _raw_sample(lab, lab.shared(name), batch, connections)

    samples = lab.beside_rival(measuring)
    by_request = batch == "one"
    return _outcome(
        row,
        f"{title}, {batch}, {connections} conn.",
        samples,
        "requests_per_s" if by_request else "mb_per_s",
        scale=1e-3 if by_request else 1,
        unit="k req/s" if by_request else "MB/s",
        against=lab.rival,
        bar=bar,
        note="CPU per million requests" if by_request else "CPU per million records",
    )


def _raw_sample(lab: Lab, broker: MeasuredBroker, batch: str, connections: int) -> Sample:
    with lab.topic(broker) as topic:
        before_s = broker.cpu_seconds()
        result = drive(
            broker.address,
            topic,
            BATCHES[batch],
            connections=connections,
            partitions=PARTITIONS,
            seconds=lab.sizes.raw_seconds,
        )
        cpu_s = broker.cpu_seconds() - before_s
    counted = result.requests if batch == "one" else result.records
    return {
        "requests_per_s": result.requests_per_s,
        "mb_per_s": result.mb_per_s,
        "cpu_per_million": cpu_s / counted * 1e6,
    }


def _per_million(sample: dict[str, float], counted: str) -> Sample:
    return {**sample, "cpu_per_million": sample["cpu_s"] / sample[counted] * 1e6}


def _rate(
    row: str,
    title: str,
    size: int,
    samples: tuple[Sequence[Sample], Sequence[Sample]],
    *,
    against: str,
    bar: Bar | None,
) -> Outcome:
    """The rate: records per second for small records, megabytes per second for large ones."""
    small = size < 1_000
    name, scale, unit = ("records_per_s", 1e-6, "M rec/s") if small else ("mb_per_s", 1.0, "MB/s")
    return _outcome(row, title, samples, name, scale=scale, unit=unit, against=against, bar=bar)


def _outcome(
    row: str,
    title: str,
    samples: tuple[Sequence[Sample], Sequence[Sample]],
    name: str,
    *,
    scale: float,
    unit: str,
    against: str,
    bar: Bar | None,
    note: str = "",
) -> Outcome:
    ours, theirs = samples
    return Outcome(
        row=row,
        title=title,
        unit=unit,
        ours=column(ours, name, scale),
        theirs=column(theirs, name, scale),
        against=against if theirs else "",
        bar=bar,
        cpu_ours=column(ours, "cpu_per_million"),
        cpu_theirs=column(theirs, "cpu_per_million"),
        note=note,
    )
