"""Loads that must not slow the broker down: idle partitions and connections, many topics."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench.judgement import Bar, Held, Outcome, Sample, column
from bench.lab import PARTITIONS, Lab
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.topics import create_topics
from bench.wire_client import connect, read_frame, request_frame
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.api_versions import ApiVersionsRequest

__all__ = ["idle_connections", "idle_partitions", "many_topics_start"]

PARTITIONS_BAR = Bar(">=", 0.8)
CONNECTION_BAR = Bar("<=", 12, Held.VALUE)
CONNECTION_LATENCY_BAR = Bar("<=", 2)
START_BAR = Bar("<=", 5, Held.VALUE)
SMALL_RECORD_BYTES = 100
DESCRIPTORS_RESERVED = 400


def idle_partitions(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Produce to four partitions beside thousands of idle ones."""
    count = lab.sizes.idle_topics - 1  # the written topic completes the round number
    with lab.own("tidemill", "tidemill") as (crowded, empty):
        crowded.start()
        _create_idle(crowded, count)
        empty.start()
        samples = lab.compare(_producing(lab, crowded), _producing(lab, empty))
        memory_mb = crowded.memory().anon_mb
    outcome = _rates(
        row, f"{title}, {count * PARTITIONS:,} idle", samples, "none idle", PARTITIONS_BAR
    )
    memory = Outcome(row=row, title=f"{title}: RssAnon with them", unit="MB", ours=(memory_mb,))
    return [outcome, memory]


def many_topics_start(lab: Lab, row: str, title: str) -> list[Outcome]:
    """A clean stop and a start with thousands of partitions."""
    count = lab.sizes.idle_topics
    with lab.own("tidemill") as (broker,):
        broker.start()
        _create_idle(broker, count)

        def measure() -> Sample:
            broker.stop()
            return {"s": broker.start().answer_s}

        ours, _ = lab.compare(measure, None)
    shape = f"{count:,} topics of {PARTITIONS}"
    return [
        Outcome(row=row, title=f"{title}, {shape}", unit="s", ours=column(ours, "s"), bar=START_BAR)
    ]


def idle_connections(lab: Lab, row: str, title: str) -> list[Outcome]:
    """Memory per open connection, and the latency of one more beside thousands of them."""
    count = _descriptors_for(lab.sizes.idle_connections)
    with lab.own("tidemill") as (broker,):
        broker.start()
        without = [_latency(lab, broker) for _ in range(2)]
        before_mb = broker.memory().anon_mb
        with _held_connections(broker, count):
            grown_mb = broker.memory().anon_mb - before_mb
            during = [_latency(lab, broker) for _ in range(2)]
    per_connection_kib = grown_mb * 1e6 / 1024 / count
    return [
        Outcome(
            row=row,
            title=f"{title}, {count:,}: RssAnon each",
            unit="KiB",
            ours=(per_connection_kib,),
            bar=CONNECTION_BAR,
        ),
        Outcome(
            row=row,
            title=f"{title}, {count:,}: ack p99 of one more",
            unit="ms",
            ours=column(during, "p99_us", 1e-3),
            theirs=column(without, "p99_us", 1e-3),
            against="none idle",
            bar=CONNECTION_LATENCY_BAR,
        ),
    ]


def _producing(lab: Lab, broker: MeasuredBroker) -> Callable[[], Sample]:
    count = lab.sizes.records(SMALL_RECORD_BYTES)

    def measure() -> Sample:
        with lab.topic(broker) as topic:
            return lab.qbench(broker, topic, "produce", count, SMALL_RECORD_BYTES, 1)

    return measure


def _create_idle(broker: MeasuredBroker, topics: int) -> None:
    names = [f"idle-{number}" for number in range(topics)]
    create_topics(broker.address, names, partitions=PARTITIONS)


def _latency(lab: Lab, broker: MeasuredBroker) -> Sample:
    with lab.topic(broker) as topic:
        count = lab.sizes.latency_records
        return lab.qbench(broker, topic, "latency", count, SMALL_RECORD_BYTES, 1, "linger.ms=0")


def _descriptors_for(wanted: int) -> int:
    """The most connections that this process may have; the broker inherits the same limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = wanted if hard == resource.RLIM_INFINITY else hard - DESCRIPTORS_RESERVED
    if allowed < wanted // 10:
        raise MeasurementFailed(f"the limit of {hard} open files is too low")
    return min(wanted, allowed)


@contextmanager
def _held_connections(broker: MeasuredBroker, count: int) -> Iterator[None]:
    """Idle connections: each asks for ApiVersions, like every client, and sends nothing more."""
    hello = request_frame(ApiVersionsRequest(), ApiKey.API_VERSIONS, 0)
    with ExitStack() as stack:
        for number in range(count):
            try:
                connection: socket.socket = stack.enter_context(connect(broker.address))
                connection.sendall(hello)
                read_frame(connection)
            except OSError as error:
                raise MeasurementFailed(f"connection {number + 1:,}: {error}") from error
        yield


def _rates(
    row: str,
    title: str,
    samples: tuple[list[Sample], list[Sample]],
    against: str,
    bar: Bar,
) -> Outcome:
    ours, theirs = samples
    return Outcome(
        row=row,
        title=title,
        unit="MB/s",
        ours=column(ours, "mb_per_s"),
        theirs=column(theirs, "mb_per_s"),
        against=against,
        bar=bar,
    )
