"""Writes Arrow record batches to topics: the work of one task, without any of Spark's classes.

Every partition that gets rows has an open batch, which is sent when it is full. All open batches
are sent when together they fill half of the buffer (many partitions with few rows each), when they
are older than `kafka.linger.ms`, and at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final

import pyarrow as pa

from tidemill.client.network.cluster_client import Backoff, ClusterClient
from tidemill.client.network.errors import BrokerUnreachable, ClientError
from tidemill.client.producing.batch_producer import BatchProducer, Delivered
from tidemill.client.producing.encoded_batch import EncodedBatch, compressed
from tidemill.core.clock import Clock
from tidemill.core.errors import KafkaError, UserError
from tidemill.core.ids import TopicPartition
from tidemill.core.rng import Rng
from tidemill.hot.columns.column_encode import OversizedRecord, RowBatch, RowColumns, append
from tidemill.hot.columns.row_partitions import by_key, grouped, spread
from tidemill.spark.bridge.column_batches import asked_partitions, by_topic, row_columns
from tidemill.spark.sink.options import SinkOptions
from tidemill.wire.batch import HEADER_BYTES
from tidemill.wire.compression import NONE

__all__ = ["SinkWriter"]


@final
@dataclass(slots=True)
class _Topic:
    """A topic as this task sees it."""

    name: str
    partition_count: int
    current: int
    """The partition that rows without a key go to now."""
    current_bytes: int = 0
    open: dict[int, RowBatch] = field(default_factory=dict)
    """By partition."""


@final
class SinkWriter:
    """Writes the rows of one task; other tasks may use the producer before and after."""

    def __init__(
        self,
        cluster: ClusterClient,
        producer: BatchProducer,
        options: SinkOptions,
        *,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._options = options
        self._clock = clock
        self._rng = rng
        self._topics: dict[str, _Topic] = {}
        self._opened_at = 0.0
        """The oldest open batch was opened at this time or later."""

    async def write(self, chunks: Iterable[pa.RecordBatch]) -> dict[TopicPartition, Delivered]:
        """Write all rows and wait for their acknowledgement; the result by partition.

        Raises UserError for rows that cannot be written, BatchRefused if a broker refuses a batch.
        """
        self._producer.take_delivered()
        self._opened_at = self._clock.monotonic()
        for chunk in chunks:
            if chunk.num_rows:
                await self._take(chunk)
        await self._producer.send(self._close_all())
        await self._producer.flush()
        return self._producer.take_delivered()

    async def _take(self, chunk: pa.RecordBatch) -> None:
        now_ms = self._clock.wall_ms()
        for name, rows in by_topic(chunk, self._options.topic):
            topic = await self._topic(name)
            # Batch by batch, not all at once: the first are sent while the next are filled.
            for batch in self._encode(topic, rows, now_ms):
                await self._producer.send([batch])
        if self._is_time_to_send():
            await self._producer.send(self._close_all())

    async def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            count = await self._partition_count(name)
            topic = self._topics[name] = _Topic(name, count, self._rng.below(count))
        return topic

    async def _partition_count(self, name: str) -> int:
        """Retry until a broker answers: it may be restarting when a task begins."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.delivery_timeout_ms / 1000
        backoff = Backoff()
        while True:
            try:
                info = await self._cluster.topic(name, auto_create=True)
            except KafkaError as error:
                raise UserError(f"cannot write to topic {name}: {error}") from error
            except ClientError as error:
                pause_s = backoff.next_s()
                if loop.time() + pause_s > deadline:
                    # An outage, and no mistake of the user: whoever restarts queries may go on.
                    raise BrokerUnreachable(f"cannot write to topic {name}: {error}") from error
            else:
                return len(info.partitions)
            await asyncio.sleep(pause_s)

    def _encode(self, topic: _Topic, rows: pa.RecordBatch, now_ms: int) -> Iterator[EncodedBatch]:
        """Put rows into the open batches of their partitions; yields the batches that are full."""
        count = topic.partition_count
        columns = row_columns(rows, now_ms)
        partitions = asked_partitions(rows, topic.name, count)
        if columns.keys is not None:
            by_key(partitions, columns.keys, count)
        topic.current, topic.current_bytes = spread(
            partitions,
            columns.values,
            count,
            topic.current,
            topic.current_bytes,
            self._options.batch_bytes,
        )
        order, starts = grouped(partitions, count)
        numbers = memoryview(order)
        for partition in range(count):
            if starts[partition] < starts[partition + 1]:
                span = range(starts[partition], starts[partition + 1])
                yield from self._fill(topic, partition, columns, numbers, span)

    def _fill(
        self, topic: _Topic, partition: int, columns: RowColumns, order: memoryview, span: range
    ) -> Iterator[EncodedBatch]:
        at = span.start
        while at < span.stop:
            batch = topic.open.get(partition)
            if batch is None:
                batch = topic.open[partition] = RowBatch(HEADER_BYTES)
            at = self._append(topic.name, batch, columns, order, at, span.stop)
            if at < span.stop:
                yield self._close(topic, partition)

    def _append(
        self,
        topic: str,
        batch: RowBatch,
        columns: RowColumns,
        order: memoryview,
        at: int,
        stop: int,
    ) -> int:
        bytes_max = min(self._options.batch_bytes, self._producer.batch_bytes_max)
        record_bytes_max = self._options.request_bytes_max
        try:
            return append(batch, columns, order, at, stop, bytes_max, record_bytes_max)
        except OversizedRecord as error:
            raise UserError(
                f"cannot write to topic {topic}: a row makes a record of {error.size_bytes} "
                f"bytes, and kafka.max.request.size allows {record_bytes_max}"
            ) from None
        except (ValueError, OverflowError) as error:
            raise UserError(f"cannot write to topic {topic}: {error}") from error

    def _close(self, topic: _Topic, partition: int) -> EncodedBatch:
        batch = topic.open.pop(partition)
        codec = self._options.codec
        packed = compressed(batch.buffer, codec)
        if len(packed) >= len(batch.buffer):  # a batch must not grow past what the topic takes
            packed, codec = batch.buffer, NONE
        return EncodedBatch(
            TopicPartition(topic.name, partition),
            packed,
            codec,
            batch.record_count,
            batch.base_timestamp,
            batch.max_timestamp,
        )

    def _close_all(self) -> list[EncodedBatch]:
        self._opened_at = self._clock.monotonic()
        return [
            self._close(topic, partition)
            for topic in self._topics.values()
            for partition in list(topic.open)
        ]

    def _is_time_to_send(self) -> bool:
        linger_ms = self._options.linger_ms
        if linger_ms is not None:
            age_ms = (self._clock.monotonic() - self._opened_at) * 1000
            if age_ms >= linger_ms:
                return True
        held_bytes = sum(
            len(batch.buffer) for topic in self._topics.values() for batch in topic.open.values()
        )
        return held_bytes > self._options.buffer_bytes_max // 2
