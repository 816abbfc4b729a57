"""Produce requests built beforehand, pipelined over plain sockets: the broker without the client.

    python -m bench.raw_driver 127.0.0.1:9092 TOPIC [--batch one|16k|1m] [--connections N]
                               [--in-flight N] [--seconds S] [--pid BROKER]

`pipes.py` does the sending.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from bench.pipes import Exchange, Pipe, drive_pipes
from bench.processes import cpu_seconds
from bench.wire_client import Address
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

__all__ = ["BATCHES", "Load", "RawResult", "drive", "produce_exchange"]

VERSION = 9  # by topic name, which every broker since 2.8 and every current client supports
TIMEOUT_MS = 30_000


@final
@dataclass(frozen=True, slots=True)
class Load:
    """One kind of request: a batch with some records of `record_bytes`."""

    records: int
    record_bytes: int
    in_flight: int


BATCHES: Mapping[str, Load] = {
    "one": Load(1, 100, 64),
    "16k": Load(150, 100, 16),
    "1m": Load(1_000, 1_000, 4),
}
"""In flight: at most what a broker reads from one connection before it stops reading."""


@final
@dataclass(frozen=True, slots=True)
class RawResult:
    """The number of answers, and the time they took."""

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


def produce_exchange(topic: str, partition: int, load: Load, *, acks: int = 1) -> Exchange:
    """The request that is sent again and again."""
    now_ms = int(time.time() * 1000)
    value = b"x" * load.record_bytes
    batch = build_batch(Record(value, timestamp=now_ms) for _ in range(load.records))
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return Exchange(
        request,
        ApiKey.PRODUCE,
        VERSION,
        ProduceResponse,
        lambda answer: answer.responses[0].partition_responses[0],
    )


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
    """Keep every connection full for `seconds`, then wait for the remaining answers."""
    requests = [produce_exchange(topic, p, load, acks=acks) for p in range(partitions)]
    pipes = [Pipe(address, requests[i % partitions], load.in_flight) for i in range(connections)]
    answered, took_s = drive_pipes(pipes, seconds)
    return RawResult(
        requests=answered,
        records=answered * load.records,
        request_bytes=answered * len(requests[0].frame()),
        seconds=took_s,
    )


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
