"""The work of a task in a Python worker: reads ranges of offsets into Arrow batches.

The worker keeps its connections between tasks (`blocking_client`). While Spark consumes one
response, the next Fetch is already sent; the broker writes into the socket's buffer.

Missing records (deleted by retention, truncated, or of a topic that was created again) end the task
with `DataLoss`, or are skipped if the query has `failOnDataLoss=false`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from typing import Final, final

import pyarrow as pa

from tidemill.client.consuming.consumer import Consumer, FetchedBatches
from tidemill.client.network.errors import ClientError
from tidemill.core.clock import SystemClock
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.spark.bridge.arrow_batches import ArrowBatches
from tidemill.spark.bridge.blocking_client import (
    Address,
    BlockingClient,
    RetryLimits,
    client_for,
    drop_client,
)
from tidemill.spark.options.source_options import SourceOptions
from tidemill.spark.source.data_loss import LossReport
from tidemill.spark.source.planning import OffsetRange
from tidemill.spark.source.positions import earliest_offsets, latest_offsets

__all__ = ["address_of", "read_ranges"]

_POLL_S: Final = 1.0
_MAX_WAIT_MS: Final = 500
_STALL_S: Final = 5.0
"""Time without data before we check that the log still reaches the end of the range. A newly
elected leader may not know its end yet, and a broker that has just started not every topic."""
_ASK_AGAIN_S: Final = 0.2


def address_of(options: SourceOptions) -> Address:
    """The key of this query's client in the process."""
    return Address(options.bootstrap, options.client_id, options.request_timeout_ms)


def read_ranges(
    ranges: Sequence[OffsetRange], options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Every visible record of the ranges. Raises DataLoss, KafkaError or ClientError."""
    address = address_of(options)
    try:
        yield from _RangeReader(client_for(address), options, schema).read(ranges)
    except (ClientError, KafkaError):
        drop_client(address)
        raise


@final
class _RangeReader:
    def __init__(self, client: BlockingClient, options: SourceOptions, schema: pa.Schema) -> None:
        self._client = client
        self._options = options
        self._retry_limits = RetryLimits(options.poll_timeout_ms)
        self._losses = LossReport(fail=options.fail_on_data_loss)
        self._batches = ArrowBatches(schema)
        self._clock = SystemClock()

    def read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        self._learn_topics({piece.partition.topic for piece in ranges})
        waiting = [piece for piece in ranges if self._is_same_topic(piece)]
        while waiting:
            # A consumer has one position per partition; a second range of it is read afterwards.
            now: dict[TopicPartition, OffsetRange] = {}
            for piece in waiting:
                now.setdefault(piece.partition, piece)
            waiting = [piece for piece in waiting if now[piece.partition] is not piece]
            yield from self._read_together(now)

    def _learn_topics(self, topics: set[str]) -> None:
        """Ask until all topics are known: one may be missing for a moment, and is not lost then."""
        deadline = self._clock.monotonic() + _STALL_S
        while True:
            self._client.run(lambda cluster: cluster.refresh(topics), self._retry_limits)
            known = self._client.cluster.metadata.topics.keys()
            if topics <= known or self._clock.monotonic() >= deadline:
                return
            self._client.pause(_ASK_AGAIN_S)

    def _is_same_topic(self, piece: OffsetRange) -> bool:
        info = self._client.cluster.metadata.topics.get(piece.partition.topic)
        if piece.topic_id is None or (info is not None and str(info.topic_id) == piece.topic_id):
            return True
        gone = "no longer exists" if info is None else "was deleted and created again"
        self._losses.report(
            f"topic {piece.partition.topic} {gone}: offsets {piece.start} to {piece.stop - 1} of "
            f"partition {piece.partition.partition} are gone"
        )
        return False

    def _read_together(self, ranges: dict[TopicPartition, OffsetRange]) -> Iterator[pa.RecordBatch]:
        consumer = Consumer(
            self._client.cluster,
            max_wait_ms=_MAX_WAIT_MS,
            fetch_bytes_max=self._options.fetch_bytes_max,
            partition_bytes_max=self._options.partition_bytes_max,
            retry_s=self._options.poll_timeout_ms / 1000,
            isolation_level=self._options.isolation_level,
            rack=self._options.client_rack,
        )
        consumer.read_between({p: (piece.start, piece.stop) for p, piece in ranges.items()})
        progress_at = self._clock.monotonic()
        while consumer.positions:
            fetched = self._poll(consumer)
            for answer in fetched:
                yield from self._batches.decode(answer, ranges[answer.partition].stop)
            if fetched:
                progress_at = self._clock.monotonic()
            elif self._clock.monotonic() - progress_at > _STALL_S:
                self._check_stall(consumer, self._clock.monotonic() - progress_at)

    def _poll(self, consumer: Consumer) -> list[FetchedBatches]:
        try:
            return self._client.run_once(consumer.poll_batches(_POLL_S))
        except KafkaError as refusal:
            if refusal.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._skip_deleted(consumer)
            return []

    def _check_stall(self, consumer: Consumer, stalled_s: float) -> None:
        self._skip_missing(consumer)
        if consumer.positions and stalled_s > self._options.poll_timeout_ms / 1000:
            partition, position = min(consumer.positions.items())
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{partition} has given nothing from offset {position} on for {stalled_s:.0f} s",
            )

    # --- records that are gone -------------------------------------------------------------------

    def _skip_deleted(self, consumer: Consumer) -> None:
        """Continue at the log's start: retention or DeleteRecords has removed records."""
        partitions = list(consumer.positions)
        starts = self._client.run(
            lambda cluster: earliest_offsets(cluster, partitions), self._retry_limits
        )
        for partition, start in starts.items():
            position = consumer.positions[partition]
            if start > position:
                self._losses.report(
                    f"{partition} begins at {start} now, offsets from {position} are gone"
                )
                consumer.skip_to(partition, start)
        self._skip_missing(consumer)

    def _skip_missing(self, consumer: Consumer) -> None:
        """Give up offsets beyond the end of a log that was truncated."""
        partitions = list(consumer.positions)
        if not partitions:
            return
        ends = self._client.run(
            lambda cluster: latest_offsets(cluster, partitions, self._options.isolation_level),
            self._retry_limits,
        )
        for partition, end in ends.items():
            position = consumer.positions[partition]
            if end <= position:
                self._losses.report(
                    f"{partition} ends at {end} now, offsets from {position} are gone"
                )
                consumer.skip_to(partition, None)


def _freeze_garbage_collector() -> None:
    """Exclude what is loaded from collections: Spark's worker collects garbage after every task.

    The collection costs more than a small task, and loaded modules live as long as the process.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        gc.collect()
        gc.freeze()


_freeze_garbage_collector()
