"""Several brokers on one machine: one topic over two of them, very many partitions over three."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from bench.clusters import BROKERS, TidemillCluster, running
from bench.judgement import Outcome, Sample, column
from bench.lab import PARTITIONS, Lab
from bench.processes import Measured, MeasurementFailed
from bench.topics import (
    Led,
    all_led,
    controller_of,
    create_topics,
    delete_topic,
    elect_preferred_leaders,
)
from bench.wire_client import Address

__all__ = ["are_in_sync", "are_led", "are_led_as_preferred", "many_partitions", "spread"]

TWO = 2
LARGE_RECORD_BYTES = 1_000
PARTITIONS_PER_TOPIC = 100
PARTITIONS_PER_IDLE_TOPIC = 5
"""So many partitions here for each idle topic of the other rows: 10,000 in a full run."""
PREFIX = "wide-"
WAIT_S = 120.0
POLL_S = 0.02


# --- one topic over two brokers ------------------------------------------------------------------


def spread(lab: Lab, row: str, title: str, *, size: int) -> list[Outcome]:
    """Produce to a topic whose leaders are spread over two brokers, against one broker."""
    count = lab.sizes.records(size)
    directory = lab.directory / lab.unused_name()
    directory.mkdir()
    with ExitStack() as stack:
        (one,) = stack.enter_context(lab.own("tidemill"))
        one.start()
        two = stack.enter_context(running(TidemillCluster(directory, brokers=TWO), directory))

        def producing(subject: Measured) -> Callable[[], Sample]:
            def measure() -> Sample:
                topic = lab.unused_name()
                config = {"tidemill.flush": "os"}
                create_topics(subject.address, [topic], partitions=PARTITIONS, config=config)
                try:
                    sample = lab.qbench(subject, topic, "produce", count, size, 1)
                finally:
                    delete_topic(subject.address, topic)
                return {**sample, "cpu_per_million": sample["cpu_s"] / sample["acked"] * 1e6}

            return measure

        of_two, of_one = lab.compare(producing(two), producing(one))
    is_small = size < LARGE_RECORD_BYTES
    name, scale, unit = (
        ("records_per_s", 1e-6, "M rec/s") if is_small else ("mb_per_s", 1.0, "MB/s")
    )
    return [
        Outcome(
            row=row,
            title=title,
            unit=unit,
            ours=column(of_two, name, scale),
            theirs=column(of_one, name, scale),
            against="one broker",
            cpu_ours=column(of_two, "cpu_per_million"),
            cpu_theirs=column(of_one, "cpu_per_million"),
        )
    ]


# --- many partitions over three ------------------------------------------------------------------


def many_partitions(lab: Lab, row: str, title: str) -> list[Outcome]:
    """How long a start, the failover of the controller and an election of all leaders take."""
    lab.stop_shared()
    count = lab.sizes.idle_topics * PARTITIONS_PER_IDLE_TOPIC
    names = [f"{PREFIX}{number}" for number in range(count // PARTITIONS_PER_TOPIC)]
    directory = lab.directory / lab.unused_name()
    directory.mkdir()
    with running(TidemillCluster(directory), directory) as cluster:
        assert isinstance(cluster, TidemillCluster)
        create_topics(cluster.address, names, partitions=PARTITIONS_PER_TOPIC, replication=BROKERS)
        lab.tick()
        times = {"a start": _start_s(cluster, count)}
        lab.tick()
        times["a new controller"] = _failover_s(cluster, count)
        lab.tick()
        times["an election of all leaders"] = _election_s(cluster, count)
        lab.tick()
    return [
        Outcome(row=row, title=f"{title}, {count:,}: {what}", unit="s", ours=(took_s,))
        for what, took_s in times.items()
    ]


def _start_s(cluster: TidemillCluster, count: int) -> float:
    """From the start of three brokers until each partition is led."""
    cluster.stop()
    began = time.monotonic()
    cluster.start()
    _wait(lambda: are_led(all_led(cluster.address, PREFIX), count), "every partition is led")
    return time.monotonic() - began


def _failover_s(cluster: TidemillCluster, count: int) -> float:
    """From the death of the controller until another broker names its successor.

    Returns when the dead one has left the in-sync sets; it is being started again by then.
    """
    former = controller_of(cluster.address)
    if former < 0:
        raise MeasurementFailed("there is no controller")
    other = cluster.address_of((former + 1) % BROKERS)
    began = time.monotonic()
    cluster.kill_broker(former)
    _wait(lambda: controller_of(other) not in (former, -1), "another controller")
    took_s = time.monotonic() - began
    _wait(lambda: not are_in_sync(all_led(other, PREFIX), count), "the dead broker is out of sync")
    return took_s


def _election_s(cluster: TidemillCluster, count: int) -> float:
    """From the request until each partition is led by the first of its replicas."""
    address: Address = cluster.address
    _wait(lambda: are_in_sync(all_led(address, PREFIX), count), "every replica is in sync")
    began = time.monotonic()
    elect_preferred_leaders(address)
    _wait(lambda: are_led_as_preferred(all_led(address, PREFIX), count), "preferred leaders")
    return time.monotonic() - began


def are_led(partitions: Iterable[Led], count: int) -> bool:
    """Whether so many partitions are there, each with a leader."""
    return sum(one.leader >= 0 for one in partitions) == count


def are_in_sync(partitions: Iterable[Led], count: int) -> bool:
    """Whether so many partitions are there, each with all its replicas in sync."""
    return sum(one.in_sync == BROKERS for one in partitions) == count


def are_led_as_preferred(partitions: Iterable[Led], count: int) -> bool:
    """Whether so many partitions are there, each led by the first of its replicas."""
    return sum(one.leader == one.preferred for one in partitions) == count


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"not within {WAIT_S:g} s: {what}")
        time.sleep(POLL_S)
