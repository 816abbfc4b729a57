"""What durable acknowledgements cost: one at a time, beside load, and over many partitions."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.judgement import Bar, Held, Outcome, Sample, column
from bench.lab import Lab
from bench.latency_rows import fdatasync_us
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.raw_driver import BATCHES, VERSION, drive
from bench.topics import create_topics, delete_topic
from bench.wire_client import (
    Address,
    connect,
    end_offset_sum,
    parse_answer,
    read_frame,
    request_frame,
)
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

__all__ = ["dirty_partitions", "durable_ack", "journal_recovery", "loaded_ack", "transform"]

RECORD = b"x" * 100
ACKS_ALL = -1
TIMEOUT_MS = 30_000
ROUNDS = 300
"""Requests of one sample, each sent when the one before it was answered."""
LOADED_ROUNDS = 1_000
TRANSFORM_PARTITIONS = 20
TRANSFORM_BATCH = 200
"""Records that the job consumes, sends on, flushes and commits at a time."""
WAIT_S = 60.0

ACK_P50 = Bar("<=", 0.1, Held.DIFFERENCE)
ACK_P99 = Bar("<=", 3)
LOADED_P99 = Bar("<=", 5, Held.VALUE)
MANY_BARS = {64: Bar("<=", 2), 1_000: Bar("<=", 4)}
TRANSFORM_OS = Bar(">=", 0.7)
TRANSFORM_KAFKA = Bar(">=", 1)
RECOVERY = Bar("<=", 3, Held.VALUE)


# --- one acknowledgement at a time ----------------------------------------------------------------


def durable_ack(lab: Lab, row: str, title: str) -> list[Outcome]:
    """flush=group against flush=os plus a bare fdatasync, all in turns."""
    ours, theirs = lab.compare(
        lambda: _ack_sample(lab, partitions=1, flush="group"), lambda: _ideal_sample(lab)
    )
    return [
        _times(row, f"{title} p50", (ours, theirs), "p50", "os + fdatasync", ACK_P50),
        _times(row, f"{title} p99", (ours, theirs), ("p99", "p50"), "os + fdatasync", ACK_P99),
    ]


def _ideal_sample(lab: Lab) -> Sample:
    in_memory = _ack_sample(lab, partitions=1, flush="os")["p50"]
    return {"p50": in_memory + statistics.median(fdatasync_us(lab.directory / "probe")) * 1e-3}


def loaded_ack(lab: Lab, row: str, title: str) -> list[Outcome]:
    """The same while another producer keeps about half of the loop busy."""

    def measure() -> Sample:
        broker = lab.shared("tidemill")
        with lab.topic(broker, flush="os") as other, _load(broker, other):
            return _ack_sample(lab, partitions=1, flush="group", rounds=LOADED_ROUNDS)

    ours, _ = lab.compare(measure, None)
    return [_times(row, f"{title} p99", (ours, []), "p99", "", LOADED_P99)]


@contextmanager
def _load(broker: MeasuredBroker, topic: str) -> Iterator[None]:
    """One-record requests, one in flight on each of two connections: about half of the loop."""
    is_over = threading.Event()

    def keep_busy() -> None:
        load = BATCHES["one"]
        while not is_over.is_set():
            drive(
                broker.address,
                topic,
                type(load)(load.records, load.record_bytes, 1),
                connections=2,
                partitions=2,
                seconds=0.5,
            )

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


# --- many partitions at once ----------------------------------------------------------------------


def dirty_partitions(lab: Lab, row: str, title: str) -> list[Outcome]:
    """One request with a small batch for each of many partitions, against one with one batch.

    The last line of each is the same request with flush=os: what it costs without the disk.
    """
    outcomes = []
    for partitions, bar in MANY_BARS.items():
        ours, theirs = lab.compare(_acks(lab, partitions, "group"), _acks(lab, 1, "group"))
        in_memory, _ = lab.compare(_acks(lab, partitions, "os"), None)
        name = f"{title}, {partitions:,} partitions, p50"
        outcomes += [
            _times(row, name, (ours, theirs), "p50", "1 partition", bar),
            _times(row, f"{name}, flush=os", (in_memory, []), "p50", "", None),
        ]
    return outcomes


def _acks(lab: Lab, partitions: int, flush: str) -> Callable[[], Sample]:
    return lambda: _ack_sample(lab, partitions=partitions, flush=flush)


def _ack_sample(lab: Lab, *, partitions: int, flush: str, rounds: int = ROUNDS) -> Sample:
    """Milliseconds from a request to its answer, over plain sockets."""
    broker = lab.shared("tidemill")
    with _wide_topic(lab, broker, partitions, flush) as topic:
        frame = _wide_request(topic, partitions)
        _wait_until_settled(broker.address, frame)
        took_ms = sorted(_timed(broker.address, frame, rounds))
    return {"p50": took_ms[len(took_ms) // 2], "p99": took_ms[len(took_ms) * 99 // 100]}


@contextmanager
def _wide_topic(lab: Lab, broker: MeasuredBroker, partitions: int, flush: str) -> Iterator[str]:
    name = lab.unused_name()
    config = broker.subject.topic_config(flush=flush)
    create_topics(broker.address, [name], partitions=partitions, config=config)
    try:
        yield name
    finally:
        delete_topic(broker.address, name)


def _wide_request(topic: str, partitions: int) -> bytes:
    batch = bytes(build_batch([Record(RECORD, timestamp=int(time.time() * 1000))]))
    data = [PartitionProduceData(index=at, records=bytearray(batch)) for at in range(partitions)]
    request = ProduceRequest(
        acks=ACKS_ALL,
        timeout_ms=TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )
    return request_frame(request, ApiKey.PRODUCE, VERSION)


def _wait_until_settled(address: Address, frame: bytes) -> None:
    """Repeat the request until every partition takes it, and then some more to warm up."""
    deadline = time.monotonic() + WAIT_S
    accepted = 0
    with connect(address) as connection:
        while accepted < 20:
            connection.sendall(frame)
            answer = parse_answer(read_frame(connection), ProduceResponse, ApiKey.PRODUCE, VERSION)
            codes = {part.error_code for part in answer.responses[0].partition_responses}
            accepted = accepted + 1 if codes == {0} else 0
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"requests are refused with errors {sorted(codes)}")


def _timed(address: Address, frame: bytes, rounds: int) -> Iterator[float]:
    with connect(address) as connection:
        for _ in range(rounds):
            began = time.perf_counter()
            connection.sendall(frame)
            read_frame(connection)
            yield (time.perf_counter() - began) * 1e3


# --- consume, transform, produce ------------------------------------------------------------------


def transform(lab: Lab, row: str, title: str) -> list[Outcome]:
    """A job of stock clients: it reads, sends on, waits for the acks and commits, again and again.

    flush=group is compared with our flush=os and with Kafka, which flushes nothing.
    """
    group, os_ = lab.compare(
        lambda: _transform_sample(lab, "tidemill", "group"),
        lambda: _transform_sample(lab, "tidemill", "os"),
    )
    outcomes = [_rate(row, f"{title}, flush=group", (group, os_), "flush=os", TRANSFORM_OS)]
    if lab.has_kafka:
        ours, theirs = lab.compare(
            lambda: _transform_sample(lab, "tidemill", "group"),
            lambda: _transform_sample(lab, "kafka", "os"),
        )
        outcomes.append(
            _rate(row, f"{title}, flush=group", (ours, theirs), "kafka", TRANSFORM_KAFKA)
        )
    return outcomes


def _transform_sample(lab: Lab, name: str, flush: str) -> Sample:
    broker = lab.shared(name)
    partitions = TRANSFORM_PARTITIONS
    with (
        _wide_topic(lab, broker, partitions, "os") as source,
        _wide_topic(lab, broker, partitions, flush) as target,
    ):
        count = lab.sizes.latency_records
        _fill(broker.address, source, count)
        began = time.monotonic()
        _run_job(broker.address, source, target, count)
        took_s = time.monotonic() - began
        found = end_offset_sum(broker.address, target, partitions)
    if found != count:
        raise MeasurementFailed(f"{name}: {found} of {count} records came through")
    return {"rate": count / took_s}


def _fill(address: Address, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": str(address), "log_level": 4})
    for number in range(count):
        producer.produce(topic, RECORD, partition=number % TRANSFORM_PARTITIONS)
        producer.poll(0)
    producer.flush(WAIT_S)


def _run_job(address: Address, source: str, target: str, count: int) -> None:
    common = {"bootstrap.servers": str(address), "log_level": 4}
    producer = Producer({**common, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    consumer = Consumer(
        {
            **common,
            "group.id": f"job-of-{target}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(source, at, 0) for at in range(TRANSFORM_PARTITIONS)])
        done, deadline = 0, time.monotonic() + WAIT_S
        while done < count:
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"{done} of {count} records after {WAIT_S:g} s")
            messages = consumer.consume(TRANSFORM_BATCH, timeout=0.1)
            _send_on(producer, target, messages)
            if messages:
                consumer.commit(asynchronous=False)
            done += len(messages)
    finally:
        consumer.close()


def _send_on(producer: Producer, target: str, messages: list[Message]) -> None:
    for message in messages:
        if message.error() is not None:
            raise MeasurementFailed(str(message.error()))
        producer.produce(target, message.value(), partition=message.partition())
    producer.flush(WAIT_S)


# --- recovery -------------------------------------------------------------------------------------


def journal_recovery(lab: Lab, row: str, title: str) -> list[Outcome]:
    """kill -9 while the journal holds as much as it ever does."""
    with lab.own("tidemill") as (broker,):
        broker.start()
        ours, _ = lab.compare(lambda: _journal_crash(lab, broker), None)
    return [Outcome(row=row, title=title, unit="s", ours=column(ours, "s"), bar=RECOVERY)]


def _journal_crash(lab: Lab, broker: MeasuredBroker) -> Sample:
    partitions, rounds = 64, 4 * ROUNDS
    name = lab.unused_name()
    config = broker.subject.topic_config(flush="group")
    create_topics(broker.address, [name], partitions=partitions, config=config)
    frame = _wide_request(name, partitions)
    _wait_until_settled(broker.address, frame)
    for _ in _timed(broker.address, frame, rounds):
        pass
    expected = end_offset_sum(broker.address, name, partitions)
    broker.kill()
    began = time.monotonic()
    broker.spawn()
    while end_offset_sum(broker.address, name, partitions) != expected:
        broker.check_alive()
        if time.monotonic() - began > WAIT_S:
            raise MeasurementFailed(f"fewer than {expected} acknowledged records after kill -9")
        time.sleep(0.005)
    return {"s": time.monotonic() - began}


# --- outcomes -------------------------------------------------------------------------------------


def _times(
    row: str,
    title: str,
    samples: tuple[list[Sample], list[Sample]],
    names: str | tuple[str, str],
    against: str,
    bar: Bar | None,
) -> Outcome:
    ours, theirs = samples
    mine, other = (names, names) if isinstance(names, str) else names
    return Outcome(
        row=row,
        title=title,
        unit="ms",
        ours=column(ours, mine),
        theirs=column(theirs, other),
        against=against,
        bar=bar,
    )


def _rate(
    row: str, title: str, samples: tuple[list[Sample], list[Sample]], against: str, bar: Bar
) -> Outcome:
    ours, theirs = samples
    return Outcome(
        row=row,
        title=title,
        unit="k rec/s",
        ours=column(ours, "rate", 1e-3),
        theirs=column(theirs, "rate", 1e-3),
        against=against,
        bar=bar,
    )
