"""A long backlog must not slow down producers, readers at its end, or readers in the middle.

Readers send fetch requests of one size, and each connection asks for the same position again and
again. So a sample measures finding and sending; after the warm-up sample all pages are cached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from bench.judgement import Bar, Outcome, Sample, column
from bench.lab import PARTITIONS, Lab
from bench.pipes import Exchange, Pipe, drive_pipes
from bench.processes import MeasuredBroker, MeasurementFailed
from bench.wire_client import end_offsets
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

__all__ = ["backlog"]

BAR = Bar(">=", 0.8)
RECORD_BYTES = 1_000
FETCH_BYTES = 64 * 1024
FETCH_VERSION = 11
BATCHING = "batch.num.messages=60"
"""A fetch returns at least one batch: so an answer is about as large as asked for."""
PLACES = 16
IN_FLIGHT = 2
SEED = 20


@final
@dataclass(frozen=True, slots=True)
class _Backlog:
    """One broker with a topic that is filled before the measurement."""

    lab: Lab
    broker: MeasuredBroker
    topic: str

    def produce(self) -> Sample:
        count = self.lab.sizes.records(RECORD_BYTES)
        return self.lab.qbench(self.broker, self.topic, "produce", count, RECORD_BYTES, 1)

    def fetch_at_the_end(self) -> Sample:
        """Fetch near the end, like a consumer that has nearly caught up."""
        behind = FETCH_BYTES // RECORD_BYTES
        return self._fetch([(p, end - behind) for p, end in enumerate(self._ends())])

    def fetch_anywhere(self) -> Sample:
        """Fetch all over the log, at the same offsets in each sample."""
        places = random.Random(SEED)
        ends = self._ends()
        chosen = [number % PARTITIONS for number in range(PLACES)]
        return self._fetch([(p, places.randrange(ends[p] - 1_000)) for p in chosen])

    def _ends(self) -> list[int]:
        ends = end_offsets(self.broker.address, self.topic, PARTITIONS)
        if ends is None:
            raise MeasurementFailed(f"{self.topic} is not served")
        return ends

    def _fetch(self, places: Sequence[tuple[int, int]]) -> Sample:
        exchanges = [_fetch_exchange(self.topic, *place) for place in places]
        pipes = [Pipe(self.broker.address, exchange, IN_FLIGHT) for exchange in exchanges]
        answered, took_s = drive_pipes(pipes, self.lab.sizes.raw_seconds)
        return {"k_per_s": answered / took_s / 1e3}


def backlog(lab: Lab, row: str, title: str) -> list[Outcome]:
    """The same load on a long and on a short backlog."""
    short_gb, long_gb = lab.sizes.backlog_gb
    lab.need_disk(short_gb + long_gb)
    against = f"{short_gb:g} GB"
    with lab.own("tidemill", "tidemill") as brokers:
        long, short = _filled(lab, brokers[0], long_gb), _filled(lab, brokers[1], short_gb)

        def compared(
            what: str, unit: str, key: str, measure: Callable[[_Backlog], Sample]
        ) -> Outcome:
            ours, theirs = lab.compare(lambda: measure(long), lambda: measure(short))
            return Outcome(
                row=row,
                title=f"{what} {title}, {long_gb:g} GB",
                unit=unit,
                ours=column(ours, key),
                theirs=column(theirs, key),
                against=against,
                bar=BAR,
            )

        return [
            compared("fetch at the end of", "k req/s", "k_per_s", _Backlog.fetch_at_the_end),
            compared("fetch anywhere in", "k req/s", "k_per_s", _Backlog.fetch_anywhere),
            # Last, because its batches are larger than the ones that the others read.
            compared("produce onto", "MB/s", "mb_per_s", _Backlog.produce),
        ]


def _filled(lab: Lab, broker: MeasuredBroker, gigabytes: float) -> _Backlog:
    broker.start()
    topic = lab.new_topic(broker)
    count = int(gigabytes * 1e9) // RECORD_BYTES
    lab.qbench(broker, topic, "produce", count, RECORD_BYTES, 1, BATCHING)
    return _Backlog(lab, broker, topic)


def _fetch_exchange(topic: str, partition: int, offset: int) -> Exchange:
    wanted = FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
    )
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=1_000,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    return Exchange(
        request, ApiKey.FETCH, FETCH_VERSION, FetchResponse, lambda a: a.responses[0].partitions[0]
    )
