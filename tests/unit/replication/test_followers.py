"""The loop that fetches: what is wrong with one partition does not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

import pytest

from tests.support.memory_peer import simulated
from tests.support.partitions import OWN, SECOND, Flushes, batch, image, settings
from tidemill.core.errors import DiskFull, ErrorCode
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.replication.follower_log import FollowerLog
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.follower import Followers
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

TOPIC_ID = TopicId(UUID(int=7))
BROKER_EPOCH = 31
EPOCH = 5


class Connection:
    """A leader that answers what a test says."""

    def __init__(self) -> None:
        self.asked: list[FetchRequest] = []
        self.answer: list[PartitionData] = []
        self.error_code = 0

    async def request(
        self, request: FetchRequest, _response: type[FetchResponse], *, timeout_s: float
    ) -> FetchResponse:
        self.asked.append(request)
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=self.answer)
        return FetchResponse(error_code=self.error_code, responses=[topic])

    def asked_indexes(self) -> list[int]:
        return [one.partition for topic in self.asked[-1].topics for one in topic.partitions]


class Cutter:
    def __init__(self) -> None:
        self.may_cut = asyncio.Event()
        self.may_cut.set()

    async def cut(
        self,
        follower: FollowerLog,
        plan: Callable[[], LogCut | None],
        *,
        is_wanted: Callable[[], bool],
    ) -> None:
        assert is_wanted()
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

    def __init__(self, *logs: MemoryPartitionLog, unclean_epoch: int | None = None) -> None:
        self.clock = ManualClock()
        self.connection = Connection()
        self.saved = 0
        self.cutter = Cutter()
        self.followers = Followers(
            OWN,
            None,  # type: ignore[arg-type] - there is a connection already
            clock=self.clock,
            flusher=None,  # type: ignore[arg-type] - nothing waits for the disk
            cutter=self.cutter,  # type: ignore[arg-type]
            supervisor=Supervisor(lambda _name, _error: None),
            broker=lambda _broker_id: None,
            broker_epoch=lambda: BROKER_EPOCH,
            checkpoint=self._checkpoint,
            unclean_epoch=lambda _partition: unclean_epoch,
        )
        self.followers._running[SECOND] = None
        self.partitions = [self._follow(index, log) for index, log in enumerate(logs)]

    async def _checkpoint(self) -> None:
        self.saved += 1

    def _follow(self, index: int, log: MemoryPartitionLog) -> Partition:
        made = Partition(
            TopicPartition("t", index),
            TOPIC_ID,
            log,
            broker_id=OWN,
            settings=settings(flush_before_ack=False),
            flushes=Flushes(),
            high_watermark=0,
        )
        now = image(leader=SECOND, epoch=EPOCH)
        made.become_follower(now)
        self.followers.role_changed(made, now)
        return made

    async def fetch(self, *answer: PartitionData) -> list[int]:
        """One round; which partitions were asked for."""
        self.connection.answer = list(answer)
        await self.followers._fetch_once(self.connection, SECOND)  # type: ignore[arg-type]
        return self.connection.asked_indexes()


def log() -> MemoryPartitionLog:
    return MemoryPartitionLog(LogConfig())


def data(index: int, records: bytes = b"", **fields: object) -> PartitionData:
    fields = {"high_watermark": 0, "log_start_offset": 0, **fields}
    return PartitionData(partition_index=index, records=records, **fields)  # type: ignore[arg-type]


BAD = batch(1, epoch=EPOCH + 1)
GOOD = batch(1, epoch=EPOCH)


def test_H9_a_partition_with_bad_records_rests_longer_each_time_and_the_others_go_on(run, caplog):
    bench = Bench(log(), log())

    async def main() -> None:
        assert await bench.fetch(data(0, BAD), data(1, GOOD)) == [0, 1]
        assert await bench.fetch(data(1)) == [1]
        bench.clock.advance(1.0)
        assert await bench.fetch(data(0, BAD), data(1)) == [0, 1]
        bench.clock.advance(1.0)
        assert await bench.fetch(data(1)) == [1]
        bench.clock.advance(1.0)
        assert await bench.fetch(data(0, GOOD), data(1)) == [0, 1]
        assert await bench.fetch(data(0), data(1)) == [0, 1]

    with caplog.at_level(logging.ERROR):
        run(main())
    assert len(caplog.records) == 2
    assert [one.log.log_end_offset for one in bench.partitions] == [1, 1]


def test_a_partition_on_a_full_disk_rests_for_a_second(run):
    bench = Bench(FullLog(LogConfig()), log())

    async def main() -> None:
        for _ in range(3):
            assert await bench.fetch(data(0, GOOD), data(1)) == [0, 1]
            assert await bench.fetch(data(1)) == [1]
            bench.clock.advance(1.0)

    run(main())


def test_an_error_of_one_partition_delays_that_one_alone(run):
    bench = Bench(log(), log())

    async def main() -> None:
        refused = data(0, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await bench.fetch(refused, data(1))
        assert await bench.fetch(data(1)) == [1]
        assert bench.connection.asked[-1].max_wait_ms <= 100
        bench.clock.advance(0.1)
        assert await bench.fetch(data(0), data(1)) == [0, 1]

    run(main())


def test_a_fetch_carries_the_broker_epoch(run):
    bench = Bench(log())
    run(bench.fetch(data(0)))
    assert bench.connection.asked[0].replica_state.replica_epoch == BROKER_EPOCH


def test_H5_the_log_start_of_the_leader_is_adopted_and_made_durable(run):
    bench = Bench(log())
    bench.clock.advance(5.0)

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=4))
        await bench.fetch(data(0, high_watermark=4, log_start_offset=3))
        await bench.fetch(data(0, high_watermark=4, log_start_offset=3))

    run(main())
    assert bench.partitions[0].log.log_start_offset == 3
    assert bench.saved == 1


def _diverging(index: int, end_offset: int) -> PartitionData:
    return data(index, diverging_epoch=EpochEndOffset(epoch=EPOCH, end_offset=end_offset))


def test_I13_a_cut_of_committed_records_is_refused_once_and_the_others_go_on(run, caplog):
    bench = Bench(log(), log(), unclean_epoch=-1)

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=3), data(1))
        await bench.fetch(_diverging(0, 2), data(1))
        assert await bench.fetch(data(1, GOOD)) == [1]

    with caplog.at_level(logging.ERROR):
        run(main())
    assert bench.partitions[0].log.log_end_offset == 4
    assert bench.partitions[1].log.log_end_offset == 1
    assert len(caplog.records) == 1


def test_I13_where_the_metadata_does_not_say_the_cut_is_made_with_an_alarm(run, caplog):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, batch(2, epoch=EPOCH), high_watermark=2))
        await bench.fetch(data(0, batch(2, base_offset=2, epoch=EPOCH), high_watermark=3))
        await bench.fetch(_diverging(0, 2))

    with caplog.at_level(logging.ERROR):
        run(main())
    assert bench.partitions[0].log.log_end_offset == 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("start", "alarms"), [(9, 0), (4, 0), (3, 1)])
def test_a_log_begins_anew_where_the_leaders_begins_and_loses_only_what_is_after(
    run, caplog, start, alarms
):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=4))
        out = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        await bench.fetch(data(0, error_code=out, log_start_offset=start))

    with caplog.at_level(logging.ERROR):
        run(main())
    assert bench.partitions[0].log.log_end_offset == start
    assert len(caplog.records) == alarms


def test_a_partition_that_is_followed_no_more_ends_the_wait(run):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, BAD))
        waiting = asyncio.ensure_future(bench.followers._wait_ready(SECOND))
        await asyncio.sleep(0)
        bench.followers.role_changed(bench.partitions[0], image(epoch=EPOCH + 1))
        assert await waiting == []

    run(main())


@simulated
async def test_a_cut_that_takes_long_does_not_stop_the_other_partitions():
    bench = Bench(log(), log())
    await bench.fetch(data(0, GOOD), data(1, GOOD))
    bench.cutter.may_cut.clear()
    assert await bench.fetch(_diverging(0, 0), data(1)) == [0, 1]
    assert await bench.fetch(data(1)) == [1]
    bench.cutter.may_cut.set()
    await bench.followers._wait_cut(bench.partitions)
    assert bench.partitions[0].log.log_end_offset == 0
    assert await bench.fetch(data(0, GOOD)) == [0, 1]
    assert bench.partitions[0].log.log_end_offset == 1
