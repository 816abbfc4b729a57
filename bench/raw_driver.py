"""Produce requests built beforehand, pipelined over plain sockets: the broker without the client.

    python -m bench.raw_driver 127.0.0.1:9092 TOPIC [--batch one|16k|1m] [--connections N]
                               [--in-flight N] [--seconds S] [--pid BROKER]

Each connection keeps `in_flight` requests under way: it sends as many copies of one request as it
got answers. All answers to one request have the same size and the same bytes but for the offset,
so that they are checked by strides over the received bytes, not one by one: a driver that is
cheaper than the broker, in Python.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from bench.processes import MeasurementFailed, cpu_seconds
from bench.wire_client import Address, connect, parse_answer, read_frame, request_frame
from tidemill.core.error_codes import ErrorCode
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.headers import encode_response
from tidemill.wire.records import Record, build_batch

__all__ = ["BATCHES", "Load", "RawResult", "drive", "produce_request"]

VERSION = 9  # by topic name, as every broker since 2.8 and every client of today can
TIMEOUT_MS = 30_000
RECEIVE_BYTES = 256 << 10
SECONDS_MAX = 120.0
_WAIT_S = 10.0
_RETRY_S = 0.02
_NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)


@final
@dataclass(frozen=True, slots=True)
class Load:
    """One kind of request: so many records of `record_bytes` in one batch."""

    records: int
    record_bytes: int
    in_flight: int


BATCHES: Mapping[str, Load] = {
    "one": Load(1, 100, 64),
    "16k": Load(150, 100, 16),
    "1m": Load(1_000, 1_000, 4),
}
"""In flight: no more than a broker takes from one connection before it stops reading."""


@final
@dataclass(frozen=True, slots=True)
class RawResult:
    """What was answered, and how long it took."""

    requests: int
    records: int
    request_bytes: int
    seconds: float

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def mb_per_s(self) -> float:
        return self.request_bytes / self.seconds / 1e6


def produce_request(topic: str, partition: int, load: Load, *, acks: int = 1) -> bytes:
    """The frame that is sent again and again."""
    now_ms = int(time.time() * 1000)
    value = b"x" * load.record_bytes
    batch = build_batch(Record(value, timestamp=now_ms) for _ in range(load.records))
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return request_frame(request, ApiKey.PRODUCE, VERSION)


def drive(
    address: Address,
    topic: str,
    load: Load,
    *,
    connections: int,
    partitions: int,
    seconds: float,
    acks: int = 1,
) -> RawResult:
    """Keep every connection full for so long, then wait for what is under way."""
    assert seconds <= SECONDS_MAX
    requests = [produce_request(topic, p, load, acks=acks) for p in range(partitions)]
    pipes = [_Pipe(address, requests[i % partitions], load.in_flight) for i in range(connections)]
    try:
        began = time.monotonic()
        _run(pipes, began + seconds)
        took_s = time.monotonic() - began
    finally:
        for pipe in pipes:
            pipe.socket.close()
    answered = sum(pipe.answered for pipe in pipes)
    return RawResult(
        requests=answered,
        records=answered * load.records,
        request_bytes=answered * len(requests[0]),
        seconds=took_s,
    )


def _run(pipes: list[_Pipe], deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            pipe.fill()
            selector.register(pipe.socket, selectors.EVENT_READ, pipe)
        while any(pipe.waiting for pipe in pipes):
            ready = selector.select(_WAIT_S)
            if not ready:
                raise MeasurementFailed(f"no answer for {_WAIT_S:g} s")
            goes_on = time.monotonic() < deadline
            for key, _ in ready:
                key.data.take_answers()
                if goes_on:
                    key.data.fill()


@final
class _Pipe:
    """One connection, and how many of its requests are under way."""

    def __init__(self, address: Address, request: bytes, in_flight: int) -> None:
        self.socket: socket.socket = connect(address)
        self.answered = 0
        self.waiting = 0
        self._request_bytes = len(request)
        self._full = memoryview(request * in_flight)
        self._in_flight = in_flight
        self._received = bytearray()
        self._answer = self._first_answer(request)
        self._error_at = _position_of_error(self._answer)

    def _first_answer(self, request: bytes) -> bytes:
        """A broker may have told of a new leader a moment before it is one."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            self.socket.sendall(request)
            frame = read_frame(self.socket)
            error = _error_of(parse_answer(frame, ProduceResponse, ApiKey.PRODUCE, VERSION))
            if not error:
                return frame
            if error not in _NOT_YET or time.monotonic() > deadline:
                raise MeasurementFailed(f"the first request was refused with error {error}")
            time.sleep(_RETRY_S)

    def fill(self) -> None:
        """Send until `in_flight` requests are under way."""
        missing = self._in_flight - self.waiting
        if missing:
            self.socket.sendall(self._full[: missing * self._request_bytes])
            self.waiting = self._in_flight

    def take_answers(self) -> None:
        """Read what has come, and count the whole answers in it."""
        chunk = self.socket.recv(RECEIVE_BYTES)
        if not chunk:
            raise MeasurementFailed("the broker closed the connection")
        self._received += chunk
        size = len(self._answer)
        count = len(self._received) // size
        self._check(count, size)
        del self._received[: count * size]
        self.answered += count
        self.waiting -= count

    def _check(self, count: int, size: int) -> None:
        """Every answer has the size of the first one (low byte of its length) and no error."""
        end = count * size
        data = self._received
        errors = data[self._error_at : end : size].count(0)
        lengths = data[3:end:size].count(self._answer[3])
        if not errors == lengths == count:
            raise MeasurementFailed("an answer with an error, or of another size than the first")


def _position_of_error(frame: bytes) -> int:
    """Where the low byte of the error code lies in answers of this shape."""
    answer = parse_answer(frame, ProduceResponse, ApiKey.PRODUCE, VERSION)
    if _encode(answer) != frame:
        raise MeasurementFailed("the first answer cannot be written again as it was read")
    answer.responses[0].partition_responses[0].error_code = 1
    changed = _encode(answer)
    return next(i for i, (old, new) in enumerate(zip(frame, changed, strict=True)) if old != new)


def _error_of(answer: ProduceResponse) -> int:
    return answer.responses[0].partition_responses[0].error_code


def _encode(answer: ProduceResponse) -> bytes:
    spec = API_SPECS[ApiKey.PRODUCE]
    return b"".join(encode_response(answer, spec=spec, version=VERSION, correlation_id=1))


def main() -> None:
    options = _parser().parse_args()
    host, _, port = options.address.rpartition(":")
    before_s = cpu_seconds(options.pid) if options.pid else 0.0
    load = BATCHES[options.batch]
    result = drive(
        Address(host, int(port)),
        options.topic,
        Load(load.records, load.record_bytes, options.in_flight or load.in_flight),
        connections=options.connections,
        partitions=options.partitions,
        seconds=options.seconds,
        acks=options.acks,
    )
    print(
        f"{result.requests_per_s:,.0f} requests/s, {result.records_per_s:,.0f} records/s, "
        f"{result.mb_per_s:,.1f} MB/s"
    )
    if options.pid:
        cpu_s = cpu_seconds(options.pid) - before_s
        print(
            f"broker CPU: {cpu_s / result.seconds:.0%} of a core, "
            f"{cpu_s / result.requests * 1e6:.1f} us per request, "
            f"{cpu_s / result.records * 1e6:.3f} us per record"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench.raw_driver", description="Pipelined produce requests without a client library."
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("topic", help="it exists, with as many partitions as --partitions")
    parser.add_argument("--batch", choices=sorted(BATCHES), default="one")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=0, help="per connection")
    parser.add_argument("--acks", type=int, choices=(1, -1), default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--pid", type=int, default=0, help="the broker's, to count its CPU time")
    return parser


if __name__ == "__main__":
    main()
