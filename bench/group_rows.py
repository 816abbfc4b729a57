"""Consumer groups: commits, rebalances, large groups, many groups.

By default both brokers delay the first rebalance of a group for more members. Here they do not:
the bench measures the work, not the delay.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench.group_members import ClassicMember, ConsumerMember, find_coordinator, stabilise
from bench.judgement import Bar, Held, Outcome, Sample, column
from bench.lab import Lab
from bench.pipes import Exchange, Pipe, drive_pipes
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.topics import create_topics
from bench.wire_client import Address, connect, parse_answer, read_frame, request_frame
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

__all__ = ["large_group", "many_groups", "offset_commits", "second_member"]

CLIENTS = 32
COMMIT_VERSION = 8
FETCH_VERSION = 8
OFFSETS_TOPIC = "__consumer_offsets"
MEMBERS = 500
IDLE_S = 10.0
GROUPS = 5_000
LOAD_SECONDS_MAX = 60.0
JOIN_SECONDS_MAX = 60.0
JOINS = 9
"""A member learns of a rebalance with its next heartbeat: each join varies by up to 100 ms."""
FLUSHED_BAR = Bar(">=", 0.6)
STABLE_BAR = Bar("<=", 5, Held.VALUE)
IDLE_BAR = Bar("<=", 20, Held.VALUE)
LOAD_BAR = Bar("<=", 2, Held.VALUE)
_POLL_S = 0.01


# --- commits -------------------------------------------------------------------------------------


def offset_commits(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """Each of 32 clients, in its own group, commits one offset at a time."""

    def measuring(name: str, flush: str) -> Callable[[], Sample]:
        return lambda: _commit_sample(lab, lab.shared(name), flush)

    ours, theirs = lab.compare(
        measuring("tidemill", "os"), measuring(lab.rival, "os") if lab.rival else None
    )
    flushed, unflushed = lab.compare(measuring("tidemill", "group"), measuring("tidemill", "os"))
    return [
        _commits(row, f"{title}, {CLIENTS} clients, flush=os", (ours, theirs), lab.rival, bar),
        _commits(
            row,
            f"{title}, {CLIENTS} clients, flush=group",
            (flushed, unflushed),
            "flush=os",
            FLUSHED_BAR,
        ),
    ]


def _commits(
    row: str, title: str, samples: tuple[list[Sample], list[Sample]], against: str, bar: Bar | None
) -> Outcome:
    ours, theirs = samples
    return Outcome(
        row=row,
        title=title,
        unit="k req/s",
        ours=column(ours, "rate", 1e-3),
        theirs=column(theirs, "rate", 1e-3),
        against=against if theirs else "",
        bar=bar,
        cpu_ours=column(ours, "cpu_per_million"),
        cpu_theirs=column(theirs, "cpu_per_million"),
        note="CPU per million requests",
    )


def _commit_sample(lab: Lab, broker: MeasuredBroker, flush: str) -> Sample:
    asyncio.run(find_coordinator(broker.address, "any"))
    if broker.name == "tidemill":
        _set_flush(broker.address, flush)
    with lab.topic(broker) as topic:
        pipes = [
            Pipe(broker.address, _commit_exchange(f"{topic}-{client}", topic), 1)
            for client in range(CLIENTS)
        ]
        before_s = broker.cpu_seconds()
        count, took_s = drive_pipes(pipes, lab.sizes.raw_seconds)
        cpu_s = broker.cpu_seconds() - before_s
    return {"rate": count / took_s, "cpu_per_million": cpu_s / count * 1e6}


def _commit_exchange(group_id: str, topic: str, offset: int = 7) -> Exchange:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    return Exchange(
        OffsetCommitRequest(
            group_id=group_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        ),
        ApiKey.OFFSET_COMMIT,
        COMMIT_VERSION,
        OffsetCommitResponse,
        lambda answer: answer.topics[0].partitions[0],
    )


def _set_flush(address: Address, flush: str) -> None:
    """Set what a commit waits for: the offsets topic is configured like any other."""
    entry = ConfigEntry("tidemill.flush", flush, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": str(address), "log_level": 4})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


# --- rebalances ----------------------------------------------------------------------------------


def second_member(lab: Lab, row: str, title: str, *, bar: Bar) -> list[Outcome]:
    """From the second member's subscription until both read; librdkafka, quick heartbeats."""

    def measuring(name: str) -> Callable[[], Sample]:
        def measure() -> Sample:
            broker = lab.shared(name)
            with lab.topic(broker) as topic:
                joins = [_join_second(broker.address, topic) for _ in range(JOINS)]
                return {"s": statistics.median(joins)}

        return measure

    ours, theirs = lab.beside_rival(measuring)
    return [
        Outcome(
            row=row,
            title=title,
            unit="ms",
            ours=column(ours, "s", 1e3),
            theirs=column(theirs, "s", 1e3),
            against=lab.rival if theirs else "",
            bar=bar,
        )
    ]


def _join_second(address: Address, topic: str) -> float:
    stop = threading.Event()
    feeder = threading.Thread(target=_feed, args=(address, topic, stop))
    feeder.start()
    consumers = []
    try:
        consumers.append(_consumer(address, topic))
        _poll_until_all_read(consumers)
        began = time.monotonic()
        consumers.append(_consumer(address, topic))
        _poll_until_all_read(consumers)
        return time.monotonic() - began
    finally:
        stop.set()
        feeder.join()
        for consumer in consumers:
            consumer.close()


def _feed(address: Address, topic: str, stop: threading.Event) -> None:
    """A record to every partition, a thousand times a second."""
    producer = Producer({"bootstrap.servers": str(address), "linger.ms": 0, "log_level": 4})
    while not stop.wait(0.001):
        for partition in range(4):
            producer.produce(topic, b"x", partition=partition)
        producer.poll(0)
    producer.flush(10)


def _consumer(address: Address, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": str(address),
            "group.id": f"group-{topic}",
            "auto.offset.reset": "latest",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 10_000,
            "log_level": 4,
        }
    )
    consumer.subscribe([topic])
    return consumer


def _poll_until_all_read(consumers: list[Consumer]) -> None:
    """Whether every consumer has its share and has received a record of it since this call."""
    deadline = time.monotonic() + JOIN_SECONDS_MAX
    waiting = list(consumers)
    while waiting:
        if time.monotonic() > deadline:
            raise MeasurementFailed("the group did not settle")
        for consumer in consumers:
            message = consumer.poll(0.001)
            share = 4 // len(consumers)
            if message is not None and consumer in waiting and len(consumer.assignment()) == share:
                waiting.remove(consumer)


# --- size ----------------------------------------------------------------------------------------


def large_group(lab: Lab, row: str, title: str) -> list[Outcome]:
    """500 members on 500 partitions: time until all have their share, and their cost when idle."""
    outcomes = []
    for protocol in ("classic", "consumer"):
        ours = [_large_group_sample(lab, "tidemill", protocol)]
        theirs = [_large_group_sample(lab, "kafka", protocol)] if lab.has_kafka else []
        outcomes += [
            _value(row, f"{title}, {protocol}: stable", "s", ours, theirs, "stable_s", STABLE_BAR),
            _value(row, f"{title}, {protocol}: idle", "% core", ours, theirs, "idle_%", IDLE_BAR),
        ]
    return outcomes


def _large_group_sample(lab: Lab, name: str, protocol: str) -> Sample:
    broker = lab.shared(name)
    topic, group_id = f"wide-{protocol}", f"large-{protocol}-{time.monotonic_ns()}"
    create_topics(broker.address, [topic], partitions=MEMBERS)
    asyncio.run(find_coordinator(broker.address, group_id))
    members: list[ClassicMember] | list[ConsumerMember]
    if protocol == "classic":
        members = [ClassicMember(group_id) for _ in range(MEMBERS)]
    else:
        members = [ConsumerMember(group_id, topic) for _ in range(MEMBERS)]
    rest = asyncio.run(stabilise(broker.address, members, broker.cpu_seconds, idle_s=IDLE_S))
    lab.tick()
    return {"stable_s": rest.stable_s, "idle_%": rest.cpu_s / IDLE_S * 100}


def _value(
    row: str,
    title: str,
    unit: str,
    ours: list[Sample],
    theirs: list[Sample],
    name: str,
    bar: Bar,
) -> Outcome:
    return Outcome(
        row=row,
        title=title,
        unit=unit,
        ours=column(ours, name),
        theirs=column(theirs, name),
        against="kafka" if theirs else "",
        bar=bar,
    )


def many_groups(lab: Lab, row: str, title: str) -> list[Outcome]:
    """From the start of the process until it serves the offsets of 5,000 groups."""
    with lab.own("tidemill") as (broker,):
        broker.start()
        topic = lab.new_topic(broker)
        asyncio.run(find_coordinator(broker.address, "any"))
        groups = [f"group-{number}" for number in range(GROUPS)]
        _commit_all(broker.address, groups, topic)
        broker.stop()
        began = time.monotonic()
        broker.spawn()
        _wait_for_offsets(broker, groups, topic)
        took_s = time.monotonic() - began
    return [
        _value(row, f"{title}, {GROUPS:,} groups", "s", [{"s": took_s}], [], "s", LOAD_BAR),
    ]


def _commit_all(address: Address, groups: list[str], topic: str) -> None:
    with connect(address) as connection:
        for group_id in groups:
            exchange = _commit_exchange(group_id, topic)
            connection.sendall(exchange.frame())
            code = exchange.entry(exchange.parse(read_frame(connection))).error_code
            if code:
                raise MeasurementFailed(f"a commit was refused with error {code}")


def _wait_for_offsets(broker: MeasuredBroker, groups: list[str], topic: str) -> None:
    """Ask for all groups in one request, until it succeeds for every one of them."""
    wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=wanted) for group_id in groups]
    )
    frame = request_frame(request, ApiKey.OFFSET_FETCH, FETCH_VERSION)
    deadline = time.monotonic() + LOAD_SECONDS_MAX
    while time.monotonic() < deadline:
        broker.check_alive()
        try:
            with connect(broker.address) as connection:
                connection.sendall(frame)
                answered = read_frame(connection)
        except OSError:
            time.sleep(_POLL_S)
            continue
        answer = parse_answer(answered, OffsetFetchResponse, ApiKey.OFFSET_FETCH, FETCH_VERSION)
        if not any(group.error_code for group in answer.groups):
            offsets = [group.topics[0].partitions[0].committed_offset for group in answer.groups]
            if offsets != [7] * len(groups):
                raise MeasurementFailed("an offset is not the one that was committed")
            return
        time.sleep(_POLL_S)
    raise MeasurementFailed(f"the groups were not loaded after {LOAD_SECONDS_MAX:g} s")
