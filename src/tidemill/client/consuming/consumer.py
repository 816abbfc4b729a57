"""Reads the partitions that the caller names, from an offset, a time or an end.

Theory of operation. Each broker has at most one Fetch in flight, for all the partitions that are
read from it: those it leads and, if we say our rack, those it keeps near us (`read_brokers.py`). A
poll waits for the first answer, moves the positions past the fetched batches (their headers are
enough), sends the next Fetch, and only then opens the records: the broker works while we decode.

Answers hold whole stored batches: the first may begin before the position, the last may be cut off
(T31). Records before the position are left out, a cut batch is fetched again. `poll` returns
records and skips control batches; with READ_COMMITTED the broker stops before the oldest open
transaction (T34), and aborted ones are skipped. `poll_batches` returns the batches as fetched, for
callers that decode them in another way.

With `read_between` a partition is read up to an offset and then dropped. Near the end of the range
a Fetch asks only for the bytes still wanted, estimated from the bytes read so far: otherwise a
short range in a long log would cost a full answer each time.

A lost connection or a moved leader is retried until `retry_s` have passed without an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from tidemill.client.consuming.fetched_batches import FetchedBatches
from tidemill.client.consuming.read_brokers import ReadBrokers
from tidemill.client.consuming.visible_batches import visible_batches
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.cluster_client import Backoff, ClusterClient
from tidemill.client.network.errors import ClientError, check, error_code
from tidemill.client.network.offset_lookup import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    LEADER_MOVED,
    list_offsets,
)
from tidemill.core.errors import ErrorCode, KafkaError, TidemillError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import KIB, MIB
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import BatchHeader, iter_headers, verify
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidemill.wire.records import Record, iter_records

__all__ = [
    "EARLIEST",
    "LATEST",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "AtOffset",
    "AtTime",
    "Consumer",
    "FetchedBatches",
    "FetchedRecords",
    "StartPosition",
]

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

_VERSION_BY_NAME_MAX = 12
"""From 13 on Fetch names topics by id only."""

_RANGE_SLACK_BYTES = 64 * KIB
_RANGE_FIRST_FETCH_BYTES = 1 * MIB
"""The first request of a range, before the size of its records is known."""


@final
@dataclass(frozen=True, slots=True)
class AtOffset:
    """Start at this offset."""

    offset: int


@final
@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at the first record with this time or a later one; at the end if there is none."""

    timestamp_ms: int


StartPosition = AtOffset | AtTime
EARLIEST: Final = AtTime(EARLIEST_TIMESTAMP)
LATEST: Final = AtTime(LATEST_TIMESTAMP)


@final
@dataclass(slots=True)
class FetchedRecords:
    """Records of one partition, in order."""

    topic: str
    partition: int
    records: list[Record]
    high_watermark: int


@final
@dataclass(slots=True)
class _Range:
    """Where reading of a partition stops, and how many bytes its offsets took so far."""

    stop: int
    offsets_read: int = 0
    bytes_read: int = 0

    def bytes_left(self, position: int) -> int:
        if self.offsets_read == 0:
            return _RANGE_FIRST_FETCH_BYTES
        return (self.stop - position) * self.bytes_read // self.offsets_read + _RANGE_SLACK_BYTES


@final
class Consumer:
    """Reads an explicit assignment. Give it its own `ClusterClient`: fetches wait at the broker."""

    def __init__(
        self,
        cluster: ClusterClient,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        fetch_bytes_max: int = 16 * MIB,
        partition_bytes_max: int = 1 * MIB,
        retry_s: float = 30.0,
        isolation_level: int = READ_UNCOMMITTED,
        read_ahead: bool = True,
        rack: str = "",
    ) -> None:
        self.positions: dict[TopicPartition, int] = {}
        """The next offset to be returned, for every assigned partition."""
        self._cluster = cluster
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._fetch_bytes_max = fetch_bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._retry_s = retry_s
        self._isolation_level = isolation_level
        self._read_ahead = read_ahead
        """Whether the next Fetch is sent before the records of this one are opened."""
        self._rack = rack
        self._brokers = ReadBrokers(cluster.metadata)
        self._ranges: dict[TopicPartition, _Range] = {}
        """Only of partitions that are read up to an offset."""
        self._in_flight: dict[int, asyncio.Future[FetchResponse]] = {}
        """By broker; at most one Fetch each."""
        self._failing_since: float | None = None
        self._backoff = Backoff()

    async def assign(
        self, topic: str, start: StartPosition, partitions: Iterable[int] | None = None
    ) -> None:
        """Add partitions of a topic to what `poll` reads; None adds all of them."""
        info = await self._cluster.topic(topic)
        indexes = sorted(info.partitions if partitions is None else partitions)
        for index in indexes:
            if index not in info.partitions:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index}")
        self.positions |= await self._resolve([TopicPartition(topic, i) for i in indexes], start)

    async def _resolve(
        self, partitions: list[TopicPartition], start: StartPosition
    ) -> dict[TopicPartition, int]:
        if isinstance(start, AtOffset):
            return dict.fromkeys(partitions, start.offset)
        asked = dict.fromkeys(partitions, start.timestamp_ms)
        found = await self._offsets(asked)
        if late := [partition for partition, offset in found.items() if offset < 0]:
            found |= await self._offsets(dict.fromkeys(late, LATEST_TIMESTAMP))
        return found

    async def _offsets(self, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = await list_offsets(self._cluster, asked, isolation_level=self._isolation_level)
        return {partition: listed.offset for partition, listed in found.items()}

    def read_between(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Add partitions to be read from one offset up to, not including, another.

        Each is removed from `positions` when its range is read. The caller must have learnt the
        leaders (`ClusterClient.refresh`).
        """
        for partition, (start, stop) in ranges.items():
            if start < stop:
                self.positions[partition] = start
                self._ranges[partition] = _Range(stop)

    def skip_to(self, partition: TopicPartition, offset: int | None) -> None:
        """Continue at a later offset; None, or the end of its range, drops the partition."""
        wanted = self._ranges.get(partition)
        if offset is None or (wanted is not None and offset >= wanted.stop):
            self._ranges.pop(partition, None)
            self._brokers.try_leave(partition)
            del self.positions[partition]
        else:
            self.positions[partition] = offset

    async def poll(self, timeout_s: float) -> list[FetchedRecords]:
        """The records that have arrived, if any; waits up to `timeout_s` for the first answer."""
        return [_open(fetched) for fetched in await self.poll_batches(timeout_s)]

    async def poll_batches(self, timeout_s: float) -> list[FetchedBatches]:
        """Like `poll`, but returns the batches as fetched."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            await self._fetch_from_idle_brokers()
            slices = await self._next_answers(deadline)
        except (ClientError, KafkaError) as error:
            await self._recover(error)
            return []
        if slices and self._read_ahead:
            # The next poll meets a fault again; the data that has arrived is returned first.
            with contextlib.suppress(ClientError, KafkaError):
                await self._fetch_from_idle_brokers()
        self._failing_since = None
        self._backoff.reset()
        return slices

    # --- fetching --------------------------------------------------------------------------------

    async def _fetch_from_idle_brokers(self) -> None:
        for broker_id, partitions in self._by_broker().items():
            if broker_id in self._in_flight:
                continue
            connection = await self._connect(broker_id)
            self._in_flight[broker_id] = connection.request_nowait(
                self._request(partitions),
                FetchResponse,
                timeout_s=self._max_wait_ms / 1000 + self._cluster.request_timeout_s,
                version=min(connection.version_of(ApiKey.FETCH), _VERSION_BY_NAME_MAX),
            )

    async def _connect(self, broker_id: int) -> BrokerConnection:
        try:
            return await self._cluster.connection(broker_id)
        except ClientError:
            self._brokers.leave_broker(broker_id)
            raise

    def _by_broker(self) -> dict[int, list[TopicPartition]]:
        now = asyncio.get_running_loop().time()
        found: dict[int, list[TopicPartition]] = {}
        for partition in self.positions:
            found.setdefault(self._brokers.broker_of(partition, now), []).append(partition)
        return found

    def _request(self, partitions: list[TopicPartition]) -> FetchRequest:
        topics: dict[str, FetchTopic] = {}
        for partition in partitions:
            wanted = FetchPartition(
                partition=partition.partition,
                fetch_offset=self.positions[partition],
                partition_max_bytes=self._bytes_wanted(partition),
            )
            name = partition.topic
            topics.setdefault(name, FetchTopic(topic=name)).partitions.append(wanted)
        return FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._fetch_bytes_max,
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
            rack_id=self._rack,
        )

    def _bytes_wanted(self, partition: TopicPartition) -> int:
        wanted = self._ranges.get(partition)
        if wanted is None:
            return self._partition_bytes_max
        return min(self._partition_bytes_max, wanted.bytes_left(self.positions[partition]))

    async def _next_answers(self, deadline: float) -> list[FetchedBatches]:
        now = asyncio.get_running_loop().time()
        if not self._in_flight:
            return []
        await asyncio.wait(
            list(self._in_flight.values()),
            timeout=max(0.0, deadline - now),
            return_when=asyncio.FIRST_COMPLETED,
        )
        done = {broker: future for broker, future in self._in_flight.items() if future.done()}
        for broker_id in done:
            del self._in_flight[broker_id]
        return self._take_all(done)

    def _take_all(
        self, answers: Mapping[int, asyncio.Future[FetchResponse]]
    ) -> list[FetchedBatches]:
        """The data of all answers. If there is any, a fault is left for the next fetch to meet."""
        slices: list[FetchedBatches] = []
        fault: TidemillError | None = None
        for broker_id, answer in answers.items():
            try:
                for partition, data in self._partitions(answer.result()):
                    slices += self._take(partition, data)
            except ClientError as error:
                self._brokers.leave_broker(broker_id)
                fault = error
            except KafkaError as error:
                fault = error
        if fault is not None and not slices:
            raise fault
        return slices

    def _partitions(
        self, response: FetchResponse
    ) -> Iterator[tuple[TopicPartition, PartitionData]]:
        check(response.error_code, "fetch")
        for topic in response.responses:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                if partition in self.positions:
                    yield partition, data

    def _check_partition(self, partition: TopicPartition, data: PartitionData) -> None:
        code = error_code(data.error_code)
        if code is ErrorCode.NONE:
            return
        if self._brokers.try_leave(partition):
            # It may lag, or have moved away. Whether the offset is wrong, the leader knows.
            why = f"{partition}: a near replica answers {code.name}"
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, why)
        hint = data.current_leader
        if hint is None or not self._cluster.metadata.apply_leader_hint(
            *partition, hint.leader_id, hint.leader_epoch
        ):
            self._cluster.metadata.forget_leader(*partition)
        position = self.positions[partition]
        raise KafkaError(code, f"{partition} at offset {position}")

    def _take(self, partition: TopicPartition, data: PartitionData) -> list[FetchedBatches]:
        self._check_partition(partition, data)
        if data.preferred_read_replica >= 0:
            now = asyncio.get_running_loop().time()
            self._brokers.read_near(partition, data.preferred_read_replica, now)
        view = memoryview(data.records or b"")
        position = self.positions[partition]
        batches = [
            (view[start : start + header.size_bytes], header)
            for start, header in iter_headers(view)
            if header.next_offset > position
        ]
        if not batches:
            return []
        self._advance(partition, batches)
        aborted = data.aborted_transactions or []
        return [FetchedBatches(partition, batches, position, data.high_watermark, aborted)]

    def _advance(
        self, partition: TopicPartition, batches: list[tuple[memoryview, BatchHeader]]
    ) -> None:
        position = batches[-1][1].next_offset
        wanted = self._ranges.get(partition)
        if wanted is not None:
            wanted.offsets_read += position - batches[0][1].base_offset
            wanted.bytes_read += sum(len(view) for view, _ in batches)
        self.skip_to(partition, position)

    # --- faults ----------------------------------------------------------------------------------

    async def _recover(self, error: TidemillError) -> None:
        """Pause and refresh the leaders, or give up and raise `error`."""
        now = asyncio.get_running_loop().time()
        self._failing_since = now if self._failing_since is None else self._failing_since
        passing = isinstance(error, ClientError) or (
            isinstance(error, KafkaError)
            and (error.code.retriable or error.code in LEADER_MOVED)
            and error.code is not ErrorCode.CORRUPT_MESSAGE
        )
        if not passing or now - self._failing_since >= self._retry_s:
            raise error
        await asyncio.sleep(self._backoff.next_s())
        try:
            await self._cluster.refresh({partition.topic for partition in self.positions})
        except ClientError:
            return  # the next poll meets the same fault and counts it


def _open(piece: FetchedBatches) -> FetchedRecords:
    records: list[Record] = []
    for view, header in piece.batches:
        verify(view, header)
    for view, header in visible_batches(piece):  # without READ_COMMITTED no broker lists aborted
        records += iter_records(view, header)
    if records and records[0].offset < piece.from_offset:
        records = [record for record in records if record.offset >= piece.from_offset]
    return FetchedRecords(
        piece.partition.topic, piece.partition.partition, records, piece.high_watermark
    )
