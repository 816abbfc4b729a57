"""Partitions that follow a leader, which answers what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from tests.support.partitions import OWN, SECOND, Flushes, batch, image, settings
from tidemill.client.network.errors import WouldBlock
from tidemill.core.byte_rate import NO_BOUND
from tidemill.core.errors import DiskFull, StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.replication.follower_log import FollowerLog
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.fetch_lane import FetchLane
from tidemill.replication.pulling.follower import Followers
from tidemill.replication.pulling.lanes import HOT
from tidemill.replication.pulling.lost_offsets import LostOffsets
from tidemill.storage.log.interface import LogConfig, LogCut
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire.generated.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidemill.wire.generated.replica_progress import ReplicaProgressRequest

TOPIC_ID = TopicId(UUID(int=7))
BROKER_EPOCH = 31
EPOCH = 5


class Connection:
    """A leader that answers what a test says."""

    def __init__(self) -> None:
        self.asked: list[FetchRequest] = []

        self.has_room = True
        self.progress: list[ReplicaProgressRequest] = []
        self.waiting: list[asyncio.Future[FetchResponse]] = []

    async def wait_room(self) -> None:
        return

    def request_nowait(
        self, request: FetchRequest, _response: type[FetchResponse], *, timeout_s: float
    ) -> asyncio.Future[FetchResponse]:
        self.asked.append(request)
        future: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def send_unanswered_nowait(self, message: ReplicaProgressRequest, *, version: int) -> None:
        if not self.has_room:
            raise WouldBlock("full")
        self.progress.append(message)

    def answer_all(self, answer: list[PartitionData], error_code: int = 0) -> None:
        """Answer the oldest fetch with this, the others with nothing."""
        for future in self.waiting:
            topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=answer)
            response = FetchResponse(error_code=error_code, session_id=9, responses=[topic])
            future.set_result(response)
            answer = []
        self.waiting.clear()

    def asked_indexes(self) -> list[int]:
        return [one.partition for topic in self.asked[-1].topics for one in topic.partitions]


class Cutter:
    def __init__(self) -> None:
        self.may_cut = asyncio.Event()
        self.may_cut.set()
        self.begun = 0

    async def cut(
        self,
        follower: FollowerLog,
        plan: Callable[[], LogCut | None],
        *,
        is_wanted: Callable[[], bool],
    ) -> None:
        assert is_wanted()
        self.begun += 1
        await self.may_cut.wait()
        cut = plan()
        if cut is not None:
            cut.read()
            assert follower.begin_cut(cut)
            cut.perform()
            cut.end()


class FullLog(MemoryPartitionLog):
    def append(self, *_args: object, **_options: object) -> None:
        raise DiskFull("no space")


class Bench:
    """Two partitions that follow the same leader."""

    def __init__(
        self,
        *logs: MemoryPartitionLog,
        unclean_epoch: int | None = None,
        flush_before_ack: bool = False,
        lane: int = HOT,
        rate: int = NO_BOUND,
    ) -> None:
        self._flush_before_ack = flush_before_ack
        self._lane = lane
        self.clock = ManualClock()
        self.connection = Connection()
        self.saved = 0
        self.may_save = asyncio.Event()
        self.may_save.set()
        self.save_fault: StorageFault | None = None
        self.cutter = Cutter()
        self.followers = Followers(
            OWN,
            None,  # type: ignore[arg-type] - there is a connection already
            clock=self.clock,
            cutter=self.cutter,  # type: ignore[arg-type]
            lost_offsets=LostOffsets(
                None,  # type: ignore[arg-type] - logs in memory have no files
                clock=self.clock,
                log_changes=asyncio.Lock(),
            ),
            supervisor=Supervisor(lambda _name, _error: None),
            broker=lambda _broker_id: None,
            broker_epoch=lambda: BROKER_EPOCH,
            catch_up_rate=lambda: rate,
            checkpoint=self._checkpoint,
            unclean_epoch=lambda _partition: unclean_epoch,
        )
        self.lane = FetchLane(SECOND, lane, self.followers._services)
        self.lane._is_running = True  # a test takes its steps
        self.followers._lanes[SECOND, lane] = self.lane
        self.partitions = [self._follow(index, log) for index, log in enumerate(logs)]

    async def _checkpoint(self) -> None:
        self.saved += 1
        await self.may_save.wait()
        if self.save_fault is not None:
            raise self.save_fault

    def _follow(self, index: int, log: MemoryPartitionLog) -> Partition:
        made = Partition(
            TopicPartition("t", index),
            TOPIC_ID,
            log,
            broker_id=OWN,
            settings=settings(flush_before_ack=self._flush_before_ack),
            flushes=Flushes(),
            high_watermark=0,
        )
        now = image(leader=SECOND, epoch=EPOCH)
        self.followers._places[made] = (SECOND, self._lane)
        made.become_follower(now)
        self.followers.role_changed(made, now)
        return made

    async def fetch(self, *answer: PartitionData) -> list[int]:
        """One round; which partitions were named."""
        connection = self.connection
        step = asyncio.ensure_future(self.lane._fetch_once(connection))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        named = connection.asked_indexes()
        connection.answer_all(list(answer))
        await step
        await asyncio.sleep(0)  # cuts begin
        await asyncio.sleep(0)
        return named


def log() -> MemoryPartitionLog:
    return MemoryPartitionLog(LogConfig())


def data(index: int, records: bytes = b"", **fields: object) -> PartitionData:
    fields = {"high_watermark": 0, "log_start_offset": 0, **fields}
    return PartitionData(partition_index=index, records=records, **fields)  # type: ignore[arg-type]


BAD = batch(1, epoch=EPOCH + 1)
GOOD = batch(1, epoch=EPOCH)
GOOD_AFTER = batch(1, base_offset=1, epoch=EPOCH)


def diverging(index: int, end_offset: int) -> PartitionData:
    return data(index, diverging_epoch=EpochEndOffset(epoch=EPOCH, end_offset=end_offset))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Waiting:
    """A lane whose fetch waits at the leader."""

    def __init__(self, *logs: MemoryPartitionLog, **options: bool) -> None:
        self.bench = Bench(*logs, **options)
        self.connection = self.bench.connection
        self.lane = self.bench.lane
        self.lane._connection = self.connection  # type: ignore[assignment]

    async def begin(self) -> None:
        await self.bench.fetch()
        self.step = asyncio.ensure_future(
            self.lane._fetch_once(self.connection)  # type: ignore[arg-type]
        )
        await turns()
        self.connection.asked.clear()

    async def end(self) -> None:
        self.connection.answer_all([])
        await self.step
