"""Followers pull: one loop per leading broker fetches all partitions that this broker follows.

A fetch also acknowledges everything before its offset. So a follower of a topic with
tidemill.flush=group flushes what it received before it fetches more, and the leader can rely on it.
Logs that diverge are told apart by leader epoch: the follower names the epoch of its last batch, a
leader that disagrees answers with the offset where that epoch ended, and the follower truncates its
log there (KIP-101, KIP-279, KIP-595).

What is wrong with one partition stops that one alone. It rests for a while, the longer the more
often it failed, and the others are fetched on (I13, S23):

| the leader's answer                       | what follows                                     |
|-------------------------------------------|--------------------------------------------------|
| records that must not follow ours         | an alarm; rests 1, 2, 4 ... 30 s                 |
| our disk is full                          | rests 1 s                                        |
| any other error                           | asked again soon                                 |
| a cut below what was committed here        | an alarm; refused if no unclean election allows it |
| log start above ours                      | ours follows, and is checkpointed                |

So does a cut that takes long, for which the log may have to be read or a full disk to get room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import final
from uuid import UUID

from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import ClientError
from tidemill.core.clock import Clock
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError, StorageFault
from tidemill.core.ids import NO_LEADER
from tidemill.core.limits import MIB
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.core.net import Net
from tidemill.metadata.image.metadata_image import BrokerImage, PartitionImage
from tidemill.replication.flusher import Flusher
from tidemill.replication.following import CutVerdict, judge_cut, rest_s_after
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.log_cutter import LogCutter
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
FULL_DISK_REST_S = 1.0
SAVE_INTERVAL_S = 1.0
CUT_WAIT_S = 0.5
"""How long the other partitions of a leader wait for a cut: most take milliseconds."""


@final
@dataclass(slots=True)
class _Rest:
    """A partition that is not fetched for a while."""

    until: float
    failures: int = 0


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
        broker_epoch: Callable[[], int] = lambda: -1,
        checkpoint: Callable[[], Awaitable[None]] | None = None,
        unclean_epoch: Callable[[Partition], int | None] = lambda _partition: None,
    ) -> None:
        """`checkpoint` makes durable where logs start; `unclean_epoch`: see `judge_cut`."""
        self._broker_epoch = broker_epoch
        self._checkpoint = checkpoint
        self._unclean_epoch = unclean_epoch
        self._broker_id = broker_id
        self._net = net
        self._clock = clock
        self._flusher = flusher
        self._cutter = cutter
        self._supervisor = supervisor
        self._broker = broker
        self._followed: dict[int, dict[Partition, None]] = {}
        self._running: dict[int, None] = {}
        self._rests: dict[Partition, _Rest] = {}
        """Of partitions whose last answers could not be used; no more than there are partitions."""
        self._failed: dict[Partition, int] = {}
        """Partitions whose leader asks for a cut that must not be made, and its epoch."""
        self._cutting: dict[Partition, None] = {}
        """Partitions that are not fetched because their logs are being cut."""
        self._cut_ended = asyncio.Event()
        self._has_unsaved_starts = False
        self._saved_at = clock.monotonic()

    def role_changed(self, partition: Partition, image: PartitionImage) -> None:
        """Follow the partition's leader from now on; called whenever its image was applied."""
        self._rests.pop(partition, None)
        if self._failed.get(partition) != image.leader_epoch or image.leader == NO_LEADER:
            self._failed.pop(partition, None)
        for leader, partitions in self._followed.items():
            if leader != image.leader:
                partitions.pop(partition, None)
        if image.leader in (self._broker_id, NO_LEADER):
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
        host, port = leader.peer_endpoint
        connection = await BrokerConnection.open(self._net, host, port, timeout_s=REQUEST_TIMEOUT_S)
        try:
            while self._followed.get(leader_id):
                await self._fetch_once(connection, leader_id)
        finally:
            connection.close()

    async def _fetch_once(self, connection: BrokerConnection, leader_id: int) -> None:
        partitions = await self._wait_ready(leader_id)
        if not partitions:
            return
        asked: dict[tuple[UUID, int], tuple[Partition, int]] = {
            (p.topic_id, p.name.partition): (p, p.leader_epoch) for p in partitions
        }
        request = self._request(partitions, self._wait_ms(leader_id))
        response = await connection.request(request, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
        appended: list[Partition] = []
        for topic in response.responses:
            for data in topic.partitions:
                partition, epoch = asked.get((topic.topic_id, data.partition_index), (None, 0))
                if partition is None or not self._follows(leader_id, partition, epoch):
                    continue  # its role changed during the fetch
                if self._try_apply(partition, data, leader_id, epoch):
                    appended.append(partition)
        await self._flush(appended)
        await self._wait_cut(partitions)
        await self._maybe_save_starts()
        if response.error_code:
            await asyncio.sleep(RETRY_S)

    async def _wait_ready(self, leader_id: int) -> list[Partition]:
        """The partitions to fetch now; waits while all of them rest. Empty if there are none."""
        while followed := self._followed[leader_id]:
            now = self._clock.monotonic()
            ready = [
                one
                for one in followed
                if one not in self._failed
                and one not in self._cutting
                and (one not in self._rests or self._rests[one].until <= now)
            ]
            if ready:
                return ready
            await asyncio.sleep(RETRY_S)
        return []

    def _wait_ms(self, leader_id: int) -> int:
        """How long the leader may park the fetch: no longer than until a rest ends."""
        now = self._clock.monotonic()
        rests = [self._rests[one] for one in self._followed[leader_id] if one in self._rests]
        ends = [rest.until - now for rest in rests if rest.until > now]
        return min([FETCH_WAIT_MS, *(int(1000 * end) for end in ends)])

    def _try_apply(
        self, partition: Partition, data: PartitionData, leader_id: int, epoch: int
    ) -> bool:
        """Apply one partition of an answer, or let it rest; whether records were appended."""
        try:
            has_appended = self._apply(partition, data, leader_id, epoch)
        except (KafkaError, StorageFault) as error:
            self._rest_after(partition, error)
            return False
        if data.error_code:
            self._rest(partition, RETRY_S, failures=0)
        elif partition not in self._cutting:
            self._rests.pop(partition, None)
        return has_appended

    def _rest_after(self, partition: Partition, error: KafkaError | StorageFault) -> None:
        if isinstance(error, DiskFull):
            if partition not in self._rests:
                log.error("replicating %s: %s", partition.name, error)
            self._rest(partition, FULL_DISK_REST_S, failures=0)
            return
        failures = self._rests[partition].failures + 1 if partition in self._rests else 1
        rest_s = rest_s_after(failures)
        log.error("replicating %s failed, again in %.0f s: %s", partition.name, rest_s, error)
        self._rest(partition, rest_s, failures=failures)

    def _rest(self, partition: Partition, rest_s: float, *, failures: int) -> None:
        self._rests[partition] = _Rest(self._clock.monotonic() + rest_s, failures)

    async def _maybe_save_starts(self) -> None:
        """Deleted records must not come back after a crash, should we lead then (I9).

        Retention moves the starts of many logs: a checkpoint covers those of a second.
        """
        now = self._clock.monotonic()
        if not self._has_unsaved_starts or now - self._saved_at < SAVE_INTERVAL_S:
            return
        self._has_unsaved_starts, self._saved_at = False, now
        if self._checkpoint is not None:
            try:
                await self._checkpoint()
            except StorageFault as fault:
                log.error("checkpoint failed: %s", fault)

    def _follows(self, leader_id: int, partition: Partition, epoch: int) -> bool:
        """Whether it still follows this leader in this epoch: between epochs others may lead."""
        followed = partition in self._followed.get(leader_id, ())
        return followed and partition.leader_epoch == epoch

    def _request(self, partitions: Iterable[Partition], wait_ms: int) -> FetchRequest:
        topics: dict[object, FetchTopic] = {}
        for partition in partitions:
            topic = topics.setdefault(partition.topic_id, FetchTopic(topic_id=partition.topic_id))
            topic.partitions.append(_wanted(partition))
        return FetchRequest(
            replica_state=ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            ),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            topics=list(topics.values()),
        )

    def _apply(self, partition: Partition, data: PartitionData, leader_id: int, epoch: int) -> bool:
        """Apply one partition of an answer; returns whether records were appended."""
        cut = _try_plan_cut(partition, data)
        if cut is not None:
            if self._allows_cut(partition, cut):
                # The role may change while it waits for its turn.
                is_wanted = partial(self._follows, leader_id, partition, epoch)
                self._cutting[partition] = None
                self._supervisor.spawn(
                    f"cut {partition.name}", self._cut(partition, cut.plan, is_wanted)
                )
            return False
        if data.error_code:
            return False
        count = partition.as_follower.append(
            data.records or b"",
            high_watermark=data.high_watermark,
            now_ms=self._clock.wall_ms(),
        )
        if partition.as_follower.follow_start(data.log_start_offset):
            self._has_unsaved_starts = True
        return count > 0

    async def _cut(
        self,
        partition: Partition,
        plan: Callable[[], LogCut | None],
        is_wanted: Callable[[], bool],
    ) -> None:
        try:
            await self._cutter.cut(partition.as_follower, plan, is_wanted=is_wanted)
        except (KafkaError, StorageFault) as error:
            if is_wanted():
                self._rest_after(partition, error)
        finally:
            del self._cutting[partition]
            self._cut_ended.set()

    async def _wait_cut(self, partitions: Iterable[Partition]) -> None:
        """Most cuts end soon; then all go on together."""
        try:
            async with asyncio.timeout(CUT_WAIT_S):
                while self._cutting and any(one in self._cutting for one in partitions):
                    self._cut_ended.clear()
                    await self._cut_ended.wait()
        except TimeoutError:
            pass

    def _allows_cut(self, partition: Partition, cut: _AskedCut) -> bool:
        """Whether the cut is made; one that drops committed records raises an alarm (I13)."""
        verdict = judge_cut(
            cut.offset,
            committed_offset=partition.as_follower.committed_offset(),
            epoch_there=partition.log.epochs.epoch_at(cut.offset),
            unclean_epoch=self._unclean_epoch(partition),
        )
        if verdict is CutVerdict.FINE:
            return True
        committed, done = partition.as_follower.committed_offset(), verdict is CutVerdict.LOSES
        log.error(
            "%s: its leader has nothing after offset %d, but %d was committed here: %s",
            partition.name,
            cut.offset,
            committed,
            "cut" if done else "refused, the partition is not replicated until a person decides",
        )
        if not done:
            self._failed[partition] = partition.leader_epoch
        return done

    async def _flush(self, partitions: list[Partition]) -> None:
        logs = [p.log for p in partitions if p.settings.flush_before_ack]
        if logs:
            await self._flusher.wait_flushed(logs)


@final
@dataclass(frozen=True, slots=True)
class _AskedCut:
    """A cut that follows from the leader's answer."""

    offset: int
    """What is kept ends here."""
    plan: Callable[[], LogCut | None]


def _try_plan_cut(partition: Partition, data: PartitionData) -> _AskedCut | None:
    """The cut that the leader's answer asks for, if any; the next fetch continues after it."""
    end = partition.log.log_end_offset
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        start = max(0, data.log_start_offset)
        partition.as_follower.leader_starts_at(start)
        # What is below its start it has deleted: only what we have from there on is lost.
        return _AskedCut(min(end, start), partial(partition.as_follower.plan_restart, start))
    if data.error_code:
        return None
    diverging = data.diverging_epoch
    if diverging is not None:
        kept = partition.as_follower.common_end(diverging.epoch, diverging.end_offset)
        plan = partial(partition.as_follower.plan_truncation, diverging.epoch, diverging.end_offset)
        return _AskedCut(kept, plan)
    begin = partition.as_follower.try_find_begin(data.records or b"")
    return (
        None
        if begin is None
        else _AskedCut(end, partial(partition.as_follower.plan_restart, begin))
    )


def _wanted(partition: Partition) -> FetchPartition:
    log_ = partition.log
    return FetchPartition(
        partition=partition.name.partition,
        current_leader_epoch=partition.leader_epoch,
        fetch_offset=partition.as_follower.fetch_offset,
        last_fetched_epoch=log_.epochs.latest,
        log_start_offset=log_.log_start_offset,
        partition_max_bytes=PARTITION_BYTES_MAX,
        high_watermark=partition.high_watermark,
        flushed_offset=log_.flushed_offset,
    )
