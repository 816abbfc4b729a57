"""Spark: our source and sink against Spark's own Kafka connector, each in its own session.

The connector works with both brokers; a rate is compared with the better one, found by a sample of
each before the rounds. Both sessions live as long as their row, so that warm JVMs are measured;
while one works, the other waits.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import final

from confluent_kafka import Producer

from bench import spark_connector
from bench.judgement import Bar, Outcome, Sample, column
from bench.lab import PARTITIONS, Lab
from bench.metrics_page import requests_answered
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.spark_process import CONNECTOR, OURS, SparkProcess, spark_process
from bench.wire_client import Address, end_offset_sum

__all__ = ["better", "idle", "micro_batch", "read", "stream", "write", "write_exactly_once"]

SMALL_RECORD_BYTES = 100
LARGE_RECORD_SHARE = 5
STREAM_BATCHES = 5
FEED_INTERVAL_S = 0.01
MARKERS_SECONDS_MAX = 10.0
IDLE_RECORDS = 100
IDLE_SETTLE_S = 5.0
IDLE_S = 10.0

Measure = Callable[[], Sample]


# --- rates ---------------------------------------------------------------------------------------


def read(lab: Lab, row: str, title: str, *, size: int, bar: Bar) -> list[Outcome]:
    """Read a filled topic as a batch with an aggregate, again and again."""
    count = lab.sizes.spark_records // (1 if size < 1_000 else LARGE_RECORD_SHARE)

    def measuring(bench: _SparkBench, spark: SparkProcess, name: str) -> Measure:
        broker, topic = bench.filled(name, count, size)

        def measure() -> Sample:
            sample = spark.ask("read", address=str(broker.address), topic=topic)
            _expect(sample, rows=count, bytes=count * size)
            return sample

        return measure

    return _rates(lab, row, title, measuring, bar)


def stream(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """Read a filled topic to its end in a few micro-batches, including the start of the query."""
    count = lab.sizes.spark_records

    def measuring(bench: _SparkBench, spark: SparkProcess, name: str) -> Measure:
        broker, topic = bench.filled(name, count, SMALL_RECORD_BYTES)
        batch_rows = count // STREAM_BATCHES

        def measure() -> Sample:
            address = str(broker.address)
            sample = spark.ask("stream", address=address, topic=topic, batch_rows=batch_rows)
            _expect(sample, rows=count, batches=STREAM_BATCHES)
            return sample

        return measure

    return _rates(lab, row, title, measuring, bar)


def write(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """Write rows that Spark generates to a new topic, until the last ack."""
    count = lab.sizes.spark_records

    def measuring(bench: _SparkBench, spark: SparkProcess, name: str) -> Measure:
        broker = lab.shared(name)

        def measure() -> Sample:
            with lab.topic(broker) as topic:
                sample = spark.ask(
                    "write",
                    address=str(broker.address),
                    topic=topic,
                    rows=count,
                    size=SMALL_RECORD_BYTES,
                )
                written = end_offset_sum(broker.address, topic, PARTITIONS)
                _expect({"records": written or 0}, records=count)
            return sample

        return measure

    return _rates(lab, row, title, measuring, bar)


def write_exactly_once(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """The same rows in one transaction, against our own write that is at least once."""
    if not spark_connector.have_spark():
        return []
    count = lab.sizes.spark_records
    with spark_process(OURS, lab.directory) as spark:
        broker = lab.shared("tidemill")

        def writing(action: str, markers: int) -> Measure:
            def measure() -> Sample:
                where = {"address": str(broker.address), "rows": count, "size": SMALL_RECORD_BYTES}
                with lab.topic(broker) as topic:
                    sample = spark.ask(action, topic=topic, **where)
                    _expect_offsets(broker.address, topic, count + markers)
                return sample

            return measure

        of_ours, of_theirs = lab.compare(writing("write_once", PARTITIONS), writing("write", 0))
    return [
        Outcome(
            row=row,
            title=title,
            unit="M rows/s",
            ours=column(of_ours, "rows_per_s", 1e-6),
            theirs=column(of_theirs, "rows_per_s", 1e-6),
            against="at least once",
            bar=bar,
            note="the transaction includes a shuffle of all rows",
        )
    ]


def _rates(
    lab: Lab,
    row: str,
    title: str,
    measuring: Callable[[_SparkBench, SparkProcess, str], Measure],
    bar: Bar,
) -> list[Outcome]:
    if not spark_connector.have_spark():
        return []
    with _spark_bench(lab) as bench:
        ours = measuring(bench, bench.ours, "tidemill")
        rivals: dict[str, Measure] = {}
        if bench.connector is not None:
            for name in bench.brokers:
                rivals[f"connector on {name}"] = measuring(bench, bench.connector, name)
        against, theirs = _quickest(lab, ours, rivals)
        of_ours, of_theirs = lab.compare(ours, theirs)
    return [
        Outcome(
            row=row,
            title=title,
            unit="M rows/s",
            ours=column(of_ours, "rows_per_s", 1e-6),
            theirs=column(of_theirs, "rows_per_s", 1e-6),
            against=against,
            bar=bar,
            note=_versions(bench),
        )
    ]


def _versions(bench: _SparkBench) -> str:
    ours = f"Spark {importlib.metadata.version('pyspark')}"
    return f"{ours}, the connector in Spark {spark_connector.VERSION}" if bench.connector else ours


def _quickest(lab: Lab, ours: Measure, rivals: Mapping[str, Measure]) -> tuple[str, Measure | None]:
    """The rival to compare with; all have then warmed up once more than `compare` needs."""
    if not rivals:
        return "", None
    ours()
    for measure in rivals.values():
        measure()
    rates = {name: measure()["rows_per_s"] for name, measure in rivals.items()}
    lab.tick()
    name = better(rates)
    return name, rivals[name]


def better(rates: Mapping[str, float]) -> str:
    """The rival with the highest rate."""
    return max(rates, key=lambda name: rates[name])


def _expect(sample: Sample, **wanted: float) -> None:
    """Fail unless the sample has all the records: else its rate means nothing."""
    for name, number in wanted.items():
        if sample[name] != number:
            raise MeasurementFailed(f"Spark had {sample[name]:g} {name} instead of {number:g}")


def _expect_offsets(address: Address, topic: str, wanted: int) -> None:
    """Fail unless the topic has so many records and markers, which come after a commit."""
    deadline = time.monotonic() + MARKERS_SECONDS_MAX
    while (written := end_offset_sum(address, topic, PARTITIONS)) != wanted:
        if time.monotonic() > deadline:
            _expect({"records and markers": written or 0}, **{"records and markers": wanted})
        time.sleep(FEED_INTERVAL_S)


# --- small batches -------------------------------------------------------------------------------


def micro_batch(lab: Lab, row: str, title: str, *, latency: Bar, overhead: Bar) -> list[Outcome]:
    """A record every 10 ms from topic to topic: the latency of the newest one of each batch.

    The bookkeeping of a batch is compared with the connector under Spark's own checkpoint manager,
    which its users have; the latency with the connector under the manager that we choose.
    """
    if not spark_connector.have_spark():
        return []
    with _spark_bench(lab) as bench:
        ours = _following(lab, bench.ours, "tidemill")
        theirs = as_shipped = None
        if bench.connector is not None:
            theirs = _following(lab, bench.connector, bench.brokers[0])
            as_shipped = _following(lab, bench.connector, bench.brokers[0], spark_checkpoints=True)
        of_ours, of_theirs = lab.compare(ours, theirs)
        shipped = [as_shipped() for _ in of_theirs] if as_shipped else []
        against = f"connector on {bench.brokers[0]}" if theirs else ""
    same_ms = column(of_theirs, "overhead_ms")
    return [
        Outcome(
            row=row,
            title=f"{title}, newest record to sink commit p50",
            unit="ms",
            ours=column(of_ours, "p50_ms"),
            theirs=column(of_theirs, "p50_ms"),
            against=against,
            bar=latency,
        ),
        Outcome(
            row=row,
            title=f"{title}, walCommit + commitOffsets p50",
            unit="ms",
            ours=column(of_ours, "overhead_ms"),
            theirs=column(shipped, "overhead_ms"),
            against=against,
            bar=overhead,
            note=f"the connector with our checkpoint manager: {statistics.median(same_ms):.0f} ms"
            if same_ms
            else "",
        ),
    ]


def _following(
    lab: Lab, spark: SparkProcess, name: str, *, spark_checkpoints: bool = False
) -> Measure:
    def measure() -> Sample:
        broker = lab.shared(name)
        with lab.topic(broker) as source, lab.topic(broker) as sink:
            where = {"address": str(broker.address), "topic": source}
            with _feeding(broker.address, source):
                spark.ask("start", **where, sink_topic=sink, spark_checkpoints=spark_checkpoints)
                time.sleep(lab.sizes.e2e_seconds)
                sample = spark.ask("stop", **where)
            if not sample["batches"]:
                raise MeasurementFailed("Spark had no micro-batch to look at")
            return sample

    return measure


@contextmanager
def _feeding(address: Address, topic: str) -> Iterator[None]:
    stop = threading.Event()
    feeder = threading.Thread(target=_feed, args=(address, topic, stop))
    feeder.start()
    try:
        yield
    finally:
        stop.set()
        feeder.join()


def _feed(address: Address, topic: str, stop: threading.Event) -> None:
    """Sends a record every 10 ms, to each partition in turn."""
    producer = Producer({"bootstrap.servers": str(address), "linger.ms": 0, "log_level": 4})
    number = 0
    while not stop.wait(FEED_INTERVAL_S):
        producer.produce(topic, b"." * SMALL_RECORD_BYTES, partition=number % PARTITIONS)
        producer.poll(0)
        number += 1
    producer.flush(10)


# --- nothing to do -------------------------------------------------------------------------------


def idle(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """The requests that a query sends to our broker after it has read everything."""
    if not spark_connector.have_spark():
        return []
    with _spark_bench(lab) as bench:
        ours = [_idle_sample(bench, bench.ours)]
        theirs = [_idle_sample(bench, bench.connector)] if bench.connector else []
    return [
        Outcome(
            row=row,
            title=title,
            unit="req/s",
            ours=column(ours, "requests_per_s"),
            theirs=column(theirs, "requests_per_s"),
            against="connector on tidemill" if theirs else "",
            bar=bar,
        )
    ]


def _idle_sample(bench: _SparkBench, spark: SparkProcess) -> Sample:
    broker, topic = bench.filled("tidemill", IDLE_RECORDS, SMALL_RECORD_BYTES)
    assert broker.metrics is not None
    where = {"address": str(broker.address), "topic": topic}
    spark.ask("start", **where, sink_topic=None, spark_checkpoints=False)
    time.sleep(IDLE_SETTLE_S)
    began, before = time.monotonic(), requests_answered(broker.metrics)
    time.sleep(IDLE_S)
    answered = requests_answered(broker.metrics) - before
    took_s = time.monotonic() - began
    spark.ask("stop", **where)
    bench.lab.tick()
    return {"requests_per_s": answered / took_s}


# --- what a row has ------------------------------------------------------------------------------


@final
class _SparkBench:
    """The sessions of a row, and its topics, which are filled once for all samples."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self.lab = lab
        self._stack = stack
        self._filled: dict[str, str] = {}
        self.brokers = ["kafka", "tidemill"] if lab.has_kafka else ["tidemill"]
        """The brokers that the connector can be used with."""
        self.ours = stack.enter_context(spark_process(OURS, lab.directory))
        self.connector: SparkProcess | None = None
        if spark_connector.provide():
            self.connector = stack.enter_context(spark_process(CONNECTOR, lab.directory))

    def filled(self, name: str, count: int, size: int) -> tuple[MeasuredBroker, str]:
        """The broker of this kind and a topic with that many records."""
        broker = self.lab.shared(name)
        if name not in self._filled:
            topic = self._stack.enter_context(self.lab.topic(broker))
            self.lab.qbench(broker, topic, "produce", count, size, 1)
            self._filled[name] = topic
        return broker, self._filled[name]


@contextmanager
def _spark_bench(lab: Lab) -> Iterator[_SparkBench]:
    with ExitStack() as stack:
        yield _SparkBench(lab, stack)
