"""A consumer that behaves as stock clients do where our own is simpler.

It fetches in a session by topic ids. In each new leader epoch it first asks where the epoch of its
last record ended (KIP-320), and takes "unknown" for lost records: then it goes to the end of the
log, as with `auto.offset.reset=latest`. So a wrong answer shows as records that it never read. A
topic that is refused stays in its session until the metadata says that it is gone. Its position
moves by records only, as that of kafkajs: those of control batches too, but it shows none of them.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.client.network.offset_lookup import LATEST_TIMESTAMP, list_offsets
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.wire.records import iter_records

__all__ = ["StockReader"]

BROKER = 0
MAX_WAIT_MS = 500
METADATA_AGE_S = 5.0
METADATA_BACKOFF_S = 1.0
RETRY_S = 0.3
TIMEOUT_S = 5.0


class StockReader:
    """Reads partition 0 of `topic`, and of `passing` while it exists; both led by broker 0."""

    def __init__(self, cluster: ClusterClient, topic: str, passing: str) -> None:
        self._cluster = cluster
        self._topic = TopicPartition(topic, 0)
        self._passing = passing
        self.read: dict[int, bytes] = {}
        self.position = 0
        self.fetches = 0
        self.refusals = 0
        """Answers that refused a partition."""
        self._last_epoch = -1
        """Of the last record that it read."""
        self._checked_epoch = -1
        """The leader's, in which the position was last found good."""
        self._metadata_due = 0.0
        self._end_session()

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                await self._step()
            except ClientError:
                await self._start_over()
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                await self._start_over()

    async def _start_over(self) -> None:
        self._end_session()
        self._metadata_due = 0.0
        await asyncio.sleep(RETRY_S)

    def _end_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._held: dict[UUID, int] = {}
        """The topics in the session, and the offset that it was told to read from."""

    async def _step(self) -> None:
        if _now() >= self._metadata_due:
            await self._cluster.refresh([self._topic.topic, self._passing])
            self._metadata_due = _now() + METADATA_AGE_S
            await self._maybe_check_position()
        await self._fetch()

    # --- positions -------------------------------------------------------------------------------

    def _leader_epoch(self) -> int:
        return self._cluster.metadata.topic(self._topic.topic).partitions[0].leader_epoch

    async def _maybe_check_position(self) -> None:
        current = self._leader_epoch()
        if current == self._checked_epoch:
            return
        if self._last_epoch >= 0:
            ended = await self._end_of_epoch(current)
            if ended < 0:
                await self._reset()
            else:
                self.position = min(self.position, ended)
        self._checked_epoch = current

    async def _end_of_epoch(self, current: int) -> int:
        wanted = OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=self._last_epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[OffsetForLeaderTopic(topic=self._topic.topic, partitions=[wanted])],
        )
        answer = await self._cluster.ask_broker(BROKER, request, OffsetForLeaderEpochResponse)
        (data,) = answer.topics[0].partitions
        if data.error_code:
            raise KafkaError(ErrorCode(data.error_code))
        return data.end_offset

    async def _reset(self) -> None:
        (end,) = (await list_offsets(self._cluster, {self._topic: LATEST_TIMESTAMP})).values()
        self.position = end.offset

    # --- fetches ---------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        known = self._cluster.metadata.topics
        own = known[self._topic.topic].topic_id
        wanted = {own: self.position}
        if self._passing in known:
            wanted[known[self._passing].topic_id] = 0
        request = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[
                _topic(i, offset) for i, offset in wanted.items() if self._held.get(i) != offset
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=i, partitions=[0]) for i in self._held if i not in wanted
            ],
        )
        self.fetches += 1
        connection = await self._cluster.connection(BROKER)
        answer = await connection.request(request, FetchResponse, timeout_s=TIMEOUT_S)
        if answer.error_code:
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)  # a new life of the broker: start over
        self._held = wanted if answer.session_id else {}
        self._session_id = answer.session_id
        self._session_epoch = self._session_epoch + 1 if answer.session_id else 0
        for topic in answer.responses:
            assert topic.topic_id in wanted, "the answer has a topic that was forgotten"
            await self._take(topic.partitions[0], is_own=topic.topic_id == own)

    async def _take(self, data: PartitionData, *, is_own: bool) -> None:
        if data.error_code:
            self.refusals += 1
            if is_own and data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._reset()
            self._metadata_due = min(self._metadata_due, _now() + METADATA_BACKOFF_S)
        if is_own and data.records:
            for start, header in iter_headers(data.records):
                self._last_epoch = header.partition_leader_epoch
                for record in iter_records(data.records[start:], header):
                    if record.offset >= self.position:
                        if not header.is_control:
                            self.read[record.offset] = bytes(record.value or b"")
                        self.position = record.offset + 1


def _now() -> float:
    return asyncio.get_running_loop().time()


def _topic(topic_id: UUID, offset: int) -> FetchTopic:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchTopic(topic_id=topic_id, partitions=[wanted])
