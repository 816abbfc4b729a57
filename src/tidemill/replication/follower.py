"""Followers pull: one loop per leading broker fetches all partitions that this broker follows.

A fetch also acknowledges everything before its offset. So a follower of a topic with
tidemill.flush=group flushes what it received before it fetches more, and the leader can rely on it.
Logs that diverge are told apart by leader epoch: the follower names the epoch of its last batch, a
leader that disagrees answers with the offset where that epoch ended, and the follower truncates its
log there (KIP-101, KIP-279, KIP-595).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import final
from uuid import UUID

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.limits import MIB
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.net import Net
from tidemill.metadata.image.metadata_image import BrokerImage, PartitionImage
from tidemill.replication.flusher import Flusher
from tidemill.replication.log_cutter import LogCutter
from tidemill.replication.partition import Partition
from tidemill.storage.log.interface import LogCut
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)

__all__ = ["Followers"]

log = logging.getLogger(__name__)

FETCH_WAIT_MS = 500
FETCH_BYTES_MAX = 10 * MIB
PARTITION_BYTES_MAX = 1 * MIB
REQUEST_TIMEOUT_S = 10.0
RETRY_S = 0.1


@final
class Followers:
    """The partitions that this broker follows, by leader, and a fetch loop for each leader."""

    def __init__(
        self,
        broker_id: int,
        net: Net,
        *,
        clock: Clock,
        flusher: Flusher,
        cutter: LogCutter,
        supervisor: Supervisor,
        broker: Callable[[int], BrokerImage | None],
    ) -> None:
        self._broker_id = broker_id
        self._net = net
        self._clock = clock
        self._flusher = flusher
        self._cutter = cutter
        self._supervisor = supervisor
        self._broker = broker
        self._followed: dict[int, dict[Partition, None]] = {}
        self._running: dict[int, None] = {}

    def role_changed(self, partition: Partition, image: PartitionImage) -> None:
        """Follow the partition's leader from now on; called whenever its image was applied."""
        for leader, partitions in self._followed.items():
            if leader != image.leader:
                partitions.pop(partition, None)
        if image.leader in (self._broker_id, -1):
            return
        self._followed.setdefault(image.leader, {})[partition] = None
        if image.leader not in self._running:
            self._running[image.leader] = None
            self._supervisor.spawn(f"follow {image.leader}", self._follow(image.leader))

    async def _follow(self, leader_id: int) -> None:
        try:
            while self._followed.get(leader_id):
                try:
                    await self._follow_connected(leader_id)
                except (ClientError, KafkaError) as error:
                    log.info("fetching from broker %d failed: %s", leader_id, error)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._running.pop(leader_id, None)

    async def _follow_connected(self, leader_id: int) -> None:
        leader = self._broker(leader_id)
        if leader is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {leader_id} is not alive")
        connection = await BrokerConnection.open(
            self._net, leader.host, leader.port, timeout_s=REQUEST_TIMEOUT_S
        )
        try:
            while self._followed.get(leader_id):
                await self._fetch_once(connection, leader_id)
        finally:
            connection.close()

    async def _fetch_once(self, connection: BrokerConnection, leader_id: int) -> None:
        partitions = list(self._followed[leader_id])
        asked: dict[tuple[UUID, int], tuple[Partition, int]] = {
            (p.topic_id, p.name.partition): (p, p.leader_epoch) for p in partitions
        }
        response = await connection.request(
            self._request(partitions), FetchResponse, timeout_s=REQUEST_TIMEOUT_S
        )
        appended, delayed = [], response.error_code != 0
        for topic in response.responses:
            for data in topic.partitions:
                partition, epoch = asked.get((topic.topic_id, data.partition_index), (None, 0))
                if partition is None or not self._follows(leader_id, partition, epoch):
                    continue  # its role changed during the fetch
                try:
                    if await self._apply(partition, data, leader_id, epoch):
                        appended.append(partition)
                except (KafkaError, StorageFault) as error:
                    # A fault of one partition (full disk, damaged batch) must not stop the others.
                    log.error("replicating %s failed: %s", partition.name, error)
                    delayed = True
                delayed = delayed or data.error_code != 0
        await self._flush(appended)
        if delayed:
            await asyncio.sleep(RETRY_S)

    def _follows(self, leader_id: int, partition: Partition, epoch: int) -> bool:
        """Whether it still follows this leader in this epoch: between epochs others may lead."""
        followed = partition in self._followed.get(leader_id, ())
        return followed and partition.leader_epoch == epoch

    def _request(self, partitions: Iterable[Partition]) -> FetchRequest:
        topics: dict[object, FetchTopic] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic_id, FetchTopic(topic_id=partition.topic_id))
            topic.partitions.append(_wanted(partition))
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            topics=list(topics.values()),
        )

    async def _apply(
        self, partition: Partition, data: PartitionData, leader_id: int, epoch: int
    ) -> bool:
        """Apply one partition of an answer; returns whether records were appended."""
        plan = _try_plan_cut(partition, data)
        if plan is not None:
            # The role may change while it waits for its turn.
            is_wanted = partial(self._follows, leader_id, partition, epoch)
            await self._cutter.cut(partition, plan, is_wanted=is_wanted)
        if plan is not None or data.error_code:
            return False
        count = partition.append_from_leader(
            data.records or b"",
            high_watermark=data.high_watermark,
            now_ms=self._clock.wall_ms(),
        )
        return count > 0

    async def _flush(self, partitions: list[Partition]) -> None:
        logs = [p.log for p in partitions if p.settings.flush_before_ack]
        if logs:
            await self._flusher.wait_flushed(logs)


def _try_plan_cut(partition: Partition, data: PartitionData) -> Callable[[], LogCut | None] | None:
    """The cut that the leader's answer asks for, if any; the next fetch continues after it."""
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return partial(partition.plan_restart, max(0, data.log_start_offset))
    if data.error_code:
        return None
    diverging = data.diverging_epoch
    if diverging is not None:
        return partial(partition.plan_truncation, diverging.epoch, diverging.end_offset)
    begin = partition.try_find_begin(data.records or b"")
    return None if begin is None else partial(partition.plan_restart, begin)


def _wanted(partition: Partition) -> FetchPartition:
    log_ = partition.log
    return FetchPartition(
        partition=partition.name.partition,
        current_leader_epoch=partition.leader_epoch,
        fetch_offset=log_.log_end_offset,
        last_fetched_epoch=log_.epochs.latest,
        log_start_offset=log_.log_start_offset,
        partition_max_bytes=PARTITION_BYTES_MAX,
        high_watermark=partition.high_watermark,
        flushed_offset=log_.flushed_offset,
    )
