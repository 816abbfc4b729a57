"""The loop that fetches: what changed is named, and a bad partition does not stop the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import pytest

from tests.support.memory_peer import simulated
from tests.support.partitions import OWN, SECOND, Flushes, batch, image, settings
from tidemill.client.network.errors import ConnectionLost, WouldBlock
from tidemill.core.byte_rate import NO_BOUND
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.limits import MIB
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.metadata.image.metadata_image import BrokerImage
from tidemill.replication.follower_log import FollowerLog
from tidemill.replication.following import RefusedCut
from tidemill.replication.partition import Partition
from tidemill.replication.pulling import fetch_lane
from tidemill.replication.pulling.fetch_lane import FetchLane
from tidemill.replication.pulling.follower import Followers
from tidemill.replication.pulling.lanes import CATCH_UP, HOT
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
        self.cutter = Cutter()
        self.followers = Followers(
            OWN,
            None,  # type: ignore[arg-type] - there is a connection already
            clock=self.clock,
            cutter=self.cutter,  # type: ignore[arg-type]
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


def test_H9_a_partition_with_bad_records_rests_longer_each_time_and_the_others_go_on(run, caplog):
    bench = Bench(log(), log())

    async def main() -> None:
        assert await bench.fetch(data(0, BAD), data(1, GOOD)) == [0, 1]
        assert await bench.fetch(data(1)) == [1]
        bench.clock.advance(1.0)
        assert await bench.fetch(data(0, BAD), data(1)) == [0]
        bench.clock.advance(1.0)
        assert await bench.fetch(data(1)) == []
        bench.clock.advance(1.0)
        assert await bench.fetch(data(0, GOOD), data(1)) == [0]
        assert await bench.fetch(data(0), data(1)) == [0]

    with caplog.at_level(logging.ERROR):
        run(main())
    assert len(caplog.records) == 2
    assert [one.log.log_end_offset for one in bench.partitions] == [1, 1]


def test_a_partition_on_a_full_disk_rests_for_a_second(run):
    bench = Bench(FullLog(LogConfig()), log())

    async def main() -> None:
        assert await bench.fetch(data(0, GOOD), data(1)) == [0, 1]
        for _ in range(3):
            assert await bench.fetch(data(1)) == []
            bench.clock.advance(1.0)
            assert await bench.fetch(data(0, GOOD), data(1)) == [0]

    run(main())


def test_an_error_of_one_partition_delays_that_one_alone(run):
    bench = Bench(log(), log())

    async def main() -> None:
        refused = data(0, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await bench.fetch(refused, data(1))
        assert await bench.fetch(data(1)) == []
        assert bench.connection.asked[-1].max_wait_ms <= 100
        bench.clock.advance(0.1)
        assert await bench.fetch(data(0), data(1)) == [0]

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
        assert await bench.fetch(data(1, GOOD)) == []

    with caplog.at_level(logging.ERROR):
        run(main())
    assert bench.partitions[0].log.log_end_offset == 4
    assert bench.partitions[1].log.log_end_offset == 1
    assert len(caplog.records) == 1


def test_the_log_says_which_uncommitted_records_a_follower_drops(run, caplog):
    bench = Bench(log(), unclean_epoch=-1)

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=2))
        await bench.fetch(_diverging(0, 2))

    with caplog.at_level(logging.INFO):
        run(main())
    assert any("drops offsets 2 to 3" in record.getMessage() for record in caplog.records)


def test_I13_a_refusal_is_known_until_another_epoch_begins(run):
    bench = Bench(log(), unclean_epoch=-1)

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=3))
        await bench.fetch(_diverging(0, 2))

    run(main())
    follower = bench.partitions[0].as_follower
    assert follower.refused_cut == RefusedCut(EPOCH, offset=2, committed_offset=3)
    bench.partitions[0].become_follower(image(leader=SECOND, epoch=EPOCH, isr=(SECOND,)))
    assert follower.refused_cut is not None
    bench.partitions[0].become_follower(image(leader=SECOND, epoch=EPOCH + 1))
    assert follower.refused_cut is None


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


@simulated
async def test_a_cut_that_takes_long_does_not_stop_the_other_partitions():
    bench = Bench(log(), log())
    await bench.fetch(data(0, GOOD), data(1, GOOD))
    bench.cutter.may_cut.clear()
    assert await bench.fetch(_diverging(0, 0), data(1, GOOD_AFTER)) == [0, 1]
    assert await bench.fetch() == [1]
    bench.cutter.may_cut.set()
    await turns()
    assert bench.partitions[0].log.log_end_offset == 0
    assert await bench.fetch(data(0, GOOD)) == [0]
    assert bench.partitions[0].log.log_end_offset == 1


@simulated
async def test_an_answer_from_before_the_leaders_next_epoch_is_not_applied():
    bench = Bench(log())
    step = asyncio.ensure_future(bench.lane._fetch_once(bench.connection))  # type: ignore[arg-type]
    await turns()
    bench.partitions[0].become_follower(image(leader=SECOND, epoch=EPOCH + 1))
    bench.connection.answer_all([data(0, GOOD)])
    await step
    assert bench.partitions[0].log.log_end_offset == 0


# --- what must be said soon -----------------------------------------------------------------------


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


@simulated
async def test_a_partition_that_has_a_new_leader_is_named_although_a_fetch_waits():
    waiting = Waiting(log(), log())
    await waiting.begin()
    for one in waiting.bench.partitions:
        newer = image(leader=SECOND, epoch=EPOCH + 1)
        one.become_follower(newer)
        waiting.bench.followers.role_changed(one, newer)
    await turns()
    assert [waiting.connection.asked_indexes()] == [[0, 1]]
    assert len(waiting.connection.asked) == 1
    # Two fetches are the most: what comes now waits for an answer.
    waiting.lane.follow(waiting.bench.partitions[0])
    await turns()
    assert len(waiting.connection.asked) == 1
    await waiting.end()


@simulated
async def test_records_that_come_while_a_second_fetch_waits_are_acknowledged_at_once():
    waiting = Waiting(log(), log())
    await waiting.begin()
    waiting.lane.follow(waiting.bench.partitions[1])
    await turns()
    # The leader answers the first fetch with records before the second one is there.
    first, second = waiting.connection.waiting
    answered = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data(0, GOOD)])
    first.set_result(FetchResponse(session_id=9, responses=[answered]))
    await waiting.step
    waiting.connection.waiting.remove(first)
    waiting.connection.asked.clear()
    waiting.step = asyncio.ensure_future(
        waiting.lane._fetch_once(waiting.connection)  # type: ignore[arg-type]
    )
    await turns()
    assert not second.done()
    (acknowledged,) = waiting.connection.asked[-1].topics[0].partitions
    assert (acknowledged.partition, acknowledged.fetch_offset) == (0, 1)
    await waiting.end()


@simulated
async def test_two_answers_that_ask_for_the_same_cut_make_one():
    waiting = Waiting(log())
    bench = waiting.bench
    await bench.fetch(data(0, GOOD))
    await waiting.begin()
    waiting.lane.follow(bench.partitions[0])
    await turns()
    bench.cutter.may_cut.clear()
    for future in list(waiting.connection.waiting):
        answered = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[_diverging(0, 0)])
        future.set_result(FetchResponse(session_id=9, responses=[answered]))
        waiting.connection.waiting.remove(future)
        await waiting.step
        waiting.step = asyncio.ensure_future(
            waiting.lane._fetch_once(waiting.connection)  # type: ignore[arg-type]
        )
        await turns()
    assert bench.cutter.begun == 1
    bench.cutter.may_cut.set()
    await turns()
    assert bench.partitions[0].log.log_end_offset == 0
    await waiting.end()


@simulated
async def test_a_second_fetch_needs_a_session_and_room_on_the_connection():
    waiting = Waiting(log())
    await waiting.begin()
    waiting.connection.has_room = False
    waiting.lane.follow(waiting.bench.partitions[0])
    await turns()
    assert waiting.connection.asked == []
    await waiting.end()
    waiting.connection.has_room = True
    waiting.lane.round.restart()
    waiting.lane.follow(waiting.bench.partitions[0])
    await turns()
    assert waiting.connection.asked == []


@simulated
async def test_progress_is_told_once_for_a_round_while_a_fetch_waits_and_by_the_next_fetch():
    waiting = Waiting(log(), log(), flush_before_ack=True)
    await waiting.begin()
    for one in waiting.bench.partitions:
        waiting.bench.followers.flushed(one)
        waiting.bench.followers.flushed(one)
    await turns()
    (progress,) = waiting.connection.progress
    assert (progress.broker_id, progress.broker_epoch) == (OWN, BROKER_EPOCH)
    told = [(one.partition_index, one.leader_epoch) for one in progress.topics[0].partitions]
    assert told == [(0, EPOCH), (1, EPOCH)]
    await waiting.end()
    assert await waiting.bench.fetch() == [0, 1]


@simulated
async def test_progress_that_cannot_be_sent_is_told_by_the_next_fetch():
    waiting = Waiting(log(), flush_before_ack=True)
    await waiting.begin()
    waiting.connection.has_room = False
    waiting.bench.followers.flushed(waiting.bench.partitions[0])
    await turns()
    assert waiting.connection.progress == []
    waiting.connection.has_room = True
    await waiting.end()
    assert await waiting.bench.fetch() == [0]


@simulated
async def test_progress_is_not_told_of_a_log_that_is_being_cut():
    waiting = Waiting(log(), log(), flush_before_ack=True)
    bench = waiting.bench
    bench.cutter.may_cut.clear()
    await bench.fetch(data(0, GOOD))
    await bench.fetch(_diverging(0, 0))
    await waiting.begin()
    for one in bench.partitions:
        bench.followers.flushed(one)
    await turns()
    (progress,) = waiting.connection.progress
    assert [one.partition_index for one in progress.topics[0].partitions] == [1]
    bench.cutter.may_cut.set()
    await waiting.end()


@simulated
async def test_a_topic_that_does_not_wait_for_disks_has_no_progress():
    waiting = Waiting(log())
    await waiting.begin()
    waiting.bench.followers.flushed(waiting.bench.partitions[0])
    await turns()
    assert waiting.connection.progress == []
    await waiting.end()


@simulated
async def test_a_session_that_the_leader_does_not_know_ends_the_connection():
    bench = Bench(log())
    step = asyncio.ensure_future(bench.lane._fetch_once(bench.connection))  # type: ignore[arg-type]
    await turns()
    bench.connection.answer_all([], int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    with pytest.raises(KafkaError):
        await step


# --- lanes ----------------------------------------------------------------------------------------


@simulated
async def test_a_partition_that_is_far_behind_is_fetched_in_the_other_lane_until_it_is_near():
    bench = Bench(log(), log())
    slow = FetchLane(SECOND, CATCH_UP, bench.followers._services)
    slow._is_running = True
    bench.followers._lanes[SECOND, CATCH_UP] = slow
    far = 1 + 16 * MIB // len(GOOD)
    await bench.fetch(data(0, GOOD, log_end_offset=1 + far), data(1))
    behind, near = bench.partitions
    assert behind in slow.round
    assert near in bench.lane.round
    assert behind not in bench.lane.round
    # Its slot in the first lane is given up, and an answer that still comes does not count.
    await bench.fetch(data(0, GOOD_AFTER))
    forgotten = bench.connection.asked[-1].forgotten_topics_data
    assert [one.partitions for one in forgotten] == [[0]]
    assert behind.log.log_end_offset == 1
    bench.followers._measured(behind, 4 * MIB - 1)
    assert behind in bench.lane.round
    assert not slow.round


@simulated
async def test_a_lane_that_catches_up_keeps_to_its_rate_and_to_the_leaders():
    bench = Bench(log(), lane=CATCH_UP, rate=100)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await bench.fetch(data(0, GOOD, log_end_offset=1_000_000))
    assert loop.time() - began >= len(GOOD) / 100
    began = loop.time()
    await bench.fetch(data(0))
    assert loop.time() - began < 0.1


@simulated
async def test_the_lane_of_those_that_keep_up_has_no_rate():
    bench = Bench(log(), rate=1)
    began = asyncio.get_running_loop().time()
    await bench.fetch(data(0, GOOD))
    assert asyncio.get_running_loop().time() - began < 0.1


@simulated
async def test_a_leader_that_takes_connections_but_answers_nothing_is_doubted_once():
    bench = Bench(log())
    opened = []

    class Broken(Connection):
        def request_nowait(self, *_args: object, **_options: object) -> asyncio.Future:
            raise ConnectionLost("closed")

        def close(self) -> None:
            opened.append(self)

    async def open_broken(*_args: object, **_options: object) -> Connection:
        return Broken()

    lost, doubts = bench.followers.lost_leaders, []
    leader = BrokerImage(broker_id=SECOND, epoch=1, host="there", port=1)
    bench.lane._services = replace(bench.lane._services, broker=lambda _broker_id: leader)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fetch_lane, "BrokerConnection", SimpleNamespace(open=open_broken))
        for _ in range(20):
            with pytest.raises(ConnectionLost):
                await bench.lane._run_connected()
            doubts.append(lost.is_doubtful(SECOND, bench.clock.monotonic()))
            bench.clock.advance(0.1)
    assert len(opened) == 20
    assert (doubts[0], doubts[-1]) == (True, False)
    await bench.fetch(data(0))
    lost.lost(SECOND, bench.clock.monotonic())
    assert lost.is_doubtful(SECOND, bench.clock.monotonic())
