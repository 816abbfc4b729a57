"""Three brokers, three replicas, two of them in sync at least, acks=all: rates, times, failures.

Each row has clusters of its own, and removes them. Kafka flushes nothing before an ack, so rates
are compared with our flush=os. `ours` is the kind of our cluster: by the store that it has.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from bench import qbench
from bench.clusters import (
    BROKERS,
    KafkaCluster,
    MeasuredCluster,
    TidemillCluster,
    running,
)
from bench.judgement import Bar, Held, Outcome, Sample, column
from bench.lab import PARTITIONS, Lab
from bench.processes import MeasurementFailed
from bench.topics import create_topics, delete_topic, leader_of, wait_for_in_sync

__all__ = [
    "Kind",
    "ack_latency",
    "catch_up",
    "memory",
    "produce",
    "start_up",
    "unavailable",
    "widest_gap_s",
]

START_BAR = Bar("<=", 2, Held.VALUE)
MEMORY_BAR = Bar("<=", 400, Held.VALUE)
CATCH_UP_BAR = Bar(">=", 150, Held.VALUE)
MEANWHILE_BAR = Bar(">=", 0.7, Held.VALUE)
LATENCY_RECORD_BYTES = 100
LARGE_RECORD_BYTES = 1_000
SETTLE_S = 2.0
WATCH_S = 20.0
"""How long acks are awaited after a broker has gone; Kafka needs up to nine seconds."""
QUIET_S = 2.0
"""So long acks must have come again before the row ends."""
CLIENT = {
    "acks": "all",
    "linger.ms": 0,
    "broker.address.family": "v4",
    "log_level": 2,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 50,
    "message.timeout.ms": 60_000,
}
"""A client that looks for the new leader at once: the row is about brokers."""
LOOK_S = 0.05
"""How often it is made to look: by itself librdkafka asks once a second who leads."""


Kind = Callable[[Path], MeasuredCluster]
"""Makes a cluster with its data in a directory."""


@contextmanager
def _clusters(
    lab: Lab, *, ours: Kind = TidemillCluster, with_kafka: bool = True
) -> Iterator[list[MeasuredCluster]]:
    """Ours, and Kafka's if there is one, both running."""
    lab.stop_shared()
    kinds = [ours, KafkaCluster] if with_kafka and lab.has_kafka else [ours]
    with ExitStack() as stack:
        clusters: list[MeasuredCluster] = []
        for kind in kinds:
            directory = lab.directory / lab.unused_name()
            directory.mkdir()
            clusters.append(stack.enter_context(running(kind(directory), directory)))
        yield clusters


def _new_topic(lab: Lab, cluster: MeasuredCluster, *, replication: int = BROKERS) -> str:
    name = lab.unused_name()
    config = cluster.topic_config(flush="os")
    create_topics(
        cluster.address, [name], partitions=PARTITIONS, replication=replication, config=config
    )
    return name


@contextmanager
def _topic(lab: Lab, cluster: MeasuredCluster) -> Iterator[str]:
    name = _new_topic(lab, cluster)
    try:
        yield name
    finally:
        delete_topic(cluster.address, name)
        os.sync()


def _compare(
    lab: Lab, clusters: list[MeasuredCluster], measure: Callable[[MeasuredCluster], Sample]
) -> tuple[list[Sample], list[Sample]]:
    steps = [lambda cluster=cluster: measure(cluster) for cluster in clusters]
    return lab.compare(steps[0], steps[1] if len(steps) > 1 else None)


def start_up(lab: Lab, row: str, title: str) -> list[Outcome]:
    """From the command on an empty directory to `ready:`; Kafka's until each node answers.

    One cluster at a time. Kafka's directories are formatted before the clock runs.
    """
    lab.stop_shared()

    def measuring(kind: Kind) -> Callable[[], Sample]:
        def measure() -> Sample:
            directory = lab.directory / lab.unused_name()
            directory.mkdir()
            cluster = kind(directory)
            began = time.monotonic()
            with running(cluster, directory):
                return {"s": time.monotonic() - began}

        return measure

    theirs = measuring(KafkaCluster) if lab.has_kafka else None
    samples = lab.compare(measuring(TidemillCluster), theirs)
    return [_outcome(row, title, "s", samples, "s", START_BAR)]


def produce(
    lab: Lab, row: str, title: str, *, size: int, bar: Bar, ours: Kind = TidemillCluster
) -> list[Outcome]:
    """Produce records of one size until the last ack."""
    count = lab.sizes.records(size)

    def measure(cluster: MeasuredCluster) -> Sample:
        with _topic(lab, cluster) as topic:
            sample = lab.qbench(cluster, topic, "produce", count, size, "all")
        return {**sample, "cpu_per_million": sample["cpu_s"] / sample["acked"] * 1e6}

    with _clusters(lab, ours=ours) as clusters:
        samples = _compare(lab, clusters, measure)
    small = size < LARGE_RECORD_BYTES
    name, scale, unit = ("records_per_s", 1e-6, "M rec/s") if small else ("mb_per_s", 1.0, "MB/s")
    return [_outcome(row, title, unit, samples, name, bar, scale=scale)]


def ack_latency(
    lab: Lab, row: str, title: str, *, p50: Bar, p99: Bar, ours: Kind = TidemillCluster
) -> list[Outcome]:
    """One record at a time."""

    def measure(cluster: MeasuredCluster) -> Sample:
        with _topic(lab, cluster) as topic:
            count = lab.sizes.latency_records
            size = LATENCY_RECORD_BYTES
            return lab.qbench(cluster, topic, "latency", count, size, "all", "linger.ms=0")

    with _clusters(lab, ours=ours) as clusters:
        samples = _compare(lab, clusters, measure)
    return [
        _outcome(row, f"{title} {share}", "ms", samples, f"{share}_us", bar, scale=1e-3)
        for share, bar in (("p50", p50), ("p99", p99))
    ]


def memory(lab: Lab, row: str, title: str) -> list[Outcome]:
    """All three after producing and consuming."""
    count = lab.sizes.consume_megabytes * 1_000_000 // LARGE_RECORD_BYTES

    def measure(cluster: MeasuredCluster) -> Sample:
        with _topic(lab, cluster) as topic:
            lab.qbench(cluster, topic, "produce", count, LARGE_RECORD_BYTES, "all")
            lab.qbench(cluster, topic, "consume", count)
            found = cluster.memory()
        return {"anon": found.anon_mb, "rss": found.resident_mb}

    with _clusters(lab) as clusters:
        samples = [[measure(cluster)] for cluster in clusters]
    both = (samples[0], samples[1] if len(samples) > 1 else [])
    return [
        _outcome(row, f"{title}, RssAnon", "MB", both, "anon", MEMORY_BAR),
        _outcome(row, f"{title}, RSS", "MB", both, "rss", None),
    ]


def unavailable(
    lab: Lab, row: str, title: str, *, is_crash: bool, bar: Bar, ours: Kind = TidemillCluster
) -> list[Outcome]:
    """The longest time without an ack for a partition whose leader goes."""

    def measure(cluster: MeasuredCluster) -> Sample:
        topic = _new_topic(lab, cluster)
        return {"ms": 1e3 * _outage_s(cluster, topic, is_crash=is_crash)}

    of_ours: list[Sample] = []
    theirs: list[Sample] = []
    for round_ in range(lab.sizes.rounds):
        is_first = round_ == 0  # Kafka's is measured once
        with _clusters(lab, ours=ours, with_kafka=is_first) as clusters:
            of_ours.append(measure(clusters[0]))
            lab.tick()
            if len(clusters) > 1:
                theirs.append(measure(clusters[1]))
                lab.tick()
    note = "the longest time between two acks of one producer"
    return [_outcome(row, title, "ms", (of_ours, theirs), "ms", bar, note=note)]


def _outage_s(cluster: MeasuredCluster, topic: str, *, is_crash: bool) -> float:
    leader = leader_of(cluster.address, topic, 0)
    acks: list[float] = []
    producer = Producer({**CLIENT, "bootstrap.servers": str(cluster.address)})
    went_at = 0.0
    began = time.monotonic()
    while time.monotonic() - began < SETTLE_S + WATCH_S:
        if not went_at and time.monotonic() - began > SETTLE_S:
            (cluster.kill_broker if is_crash else cluster.stop_broker)(leader)
            went_at = time.monotonic()
        acks.append(_send_one(producer, topic))
        if went_at and acks[-1] - went_at > QUIET_S and widest_gap_s(acks, went_at) > 0:
            break
    return widest_gap_s(acks, went_at)


def _send_one(producer: Producer, topic: str) -> float:
    """When the ack of one record came."""
    heard: list[object] = []
    producer.produce(topic, bytes(LATENCY_RECORD_BYTES), partition=0, callback=_noting(heard))
    while not heard:
        producer.poll(LOOK_S)
        if not heard:
            with suppress(KafkaException):  # the broker that it asks may be the one that has gone
                producer.list_topics(topic, timeout=LOOK_S)
    if heard[0] is not None:
        raise MeasurementFailed(f"a record was not delivered: {heard[0]}")
    return time.monotonic()


def _noting(heard: list[object]) -> Callable[[object, object], None]:
    return lambda error, _message: heard.append(error)


def widest_gap_s(acks: list[float], since: float) -> float:
    """The longest time between two acks of which the later came after `since`."""
    pairs = itertools.pairwise(acks)
    return max((after - before for before, after in pairs if after >= since), default=0.0)


def catch_up(lab: Lab, row: str, title: str) -> list[Outcome]:
    """A broker comes back with an empty disk while others are written to."""
    ours = [_catch_up_sample(lab)]
    lab.tick()
    return [
        _outcome(row, title, "MB/s", (ours, []), "mb_per_s", CATCH_UP_BAR),
        _outcome(row, f"{title}: produce meanwhile", "share", (ours, []), "share", MEANWHILE_BAR),
    ]


def _catch_up_sample(lab: Lab) -> Sample:
    megabytes = lab.sizes.consume_megabytes
    size = LARGE_RECORD_BYTES
    count = megabytes * 1_000_000 // size
    with _clusters(lab, with_kafka=False) as (cluster,):
        assert isinstance(cluster, TidemillCluster)
        lost = BROKERS - 1
        beside = _new_topic(lab, cluster, replication=1)
        usual = qbench.run(cluster.address, beside, "produce", count, size, "1")
        delete_topic(cluster.address, beside)
        topic = _new_topic(lab, cluster)
        lab.qbench(cluster, topic, "produce", count, size, "all")
        cluster.stop()
        shutil.rmtree(cluster.broker_directory(lost))
        began = time.monotonic()
        cluster.start()
        # Only now: what had its only copy on the lost disk would have no leader.
        beside = _new_topic(lab, cluster, replication=1)
        with _producing(cluster, beside, count, size) as meanwhile:
            wait_for_in_sync(cluster.address, topic, PARTITIONS, BROKERS)
            took_s = time.monotonic() - began
    return {
        "mb_per_s": megabytes / took_s,
        "share": meanwhile["mb_per_s"] / usual["mb_per_s"],
    }


@contextmanager
def _producing(
    cluster: MeasuredCluster, topic: str, count: int, size: int
) -> Iterator[dict[str, float]]:
    """Produce beside the block; the sample is there when it has ended."""
    sample: dict[str, float] = {}
    worker = threading.Thread(
        target=lambda: sample.update(
            qbench.run(cluster.address, topic, "produce", count, size, "1")
        )
    )
    worker.start()
    try:
        yield sample
    finally:
        worker.join()
    if "mb_per_s" not in sample:
        raise MeasurementFailed("the producer beside the copy failed")


def _outcome(
    row: str,
    title: str,
    unit: str,
    samples: tuple[list[Sample], list[Sample]],
    name: str,
    bar: Bar | None,
    *,
    scale: float = 1.0,
    note: str = "",
) -> Outcome:
    ours, theirs = samples
    has_cpu = bool(ours) and "cpu_per_million" in ours[0]
    return Outcome(
        row=row,
        title=title,
        unit=unit,
        ours=column(ours, name, scale),
        theirs=column(theirs, name, scale),
        against="kafka" if theirs else "",
        bar=bar,
        cpu_ours=column(ours, "cpu_per_million") if has_cpu else (),
        cpu_theirs=column(theirs, "cpu_per_million") if has_cpu and theirs else (),
        note=note,
    )
