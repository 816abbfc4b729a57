"""The loop that fetches: what changed is named, and a bad partition does not stop the others."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.follower_bench import (
    BAD,
    BROKER_EPOCH,
    EPOCH,
    GOOD,
    GOOD_AFTER,
    Bench,
    Connection,
    FullLog,
    Waiting,
    data,
    log,
    turns,
)
from tests.support.memory_peer import simulated
from tests.support.partitions import SECOND, batch, image
from tidemill.client.network.errors import ConnectionLost
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.limits import MIB
from tidemill.metadata.image.metadata_image import BrokerImage
from tidemill.replication.pulling import fetch_lane
from tidemill.replication.pulling.fetch_lane import FetchLane
from tidemill.replication.pulling.lanes import CATCH_UP, HOT
from tidemill.storage.log.interface import LogConfig


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


def test_R12_a_partition_rests_for_a_second_at_the_reserve_without_a_line_of_its_own(run, caplog):
    bench = Bench(log(), log())
    room = bench.partitions[0].room

    def set_free(free_bytes: int) -> None:
        room.end_look(0, total_bytes=1 << 30, free_bytes=free_bytes, reserve_bytes=100)

    async def main() -> None:
        set_free(0)
        assert await bench.fetch(data(0, GOOD), data(1)) == [0, 1]
        assert await bench.fetch(data(1)) == []
        set_free(1 << 29)
        bench.clock.advance(1.0)
        assert await bench.fetch(data(0, GOOD), data(1)) == [0]
        assert bench.partitions[0].log.log_end_offset == 1

    run(main())
    assert caplog.records == []


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


def test_fetches_go_on_while_a_slow_disk_takes_the_log_starts(run):
    bench = Bench(log())
    bench.may_save.clear()

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=4))
        for start in (1, 2, 3):
            bench.clock.advance(5.0)
            async with asyncio.timeout(5.0):
                await bench.fetch(data(0, high_watermark=4, log_start_offset=start))
        assert bench.saved == 1
        bench.may_save.set()
        await turns()
        await bench.fetch(data(0, high_watermark=4, log_start_offset=3))
        await turns()

    run(main())
    assert bench.saved == 2


def test_I9_the_leader_hears_of_a_start_that_was_saved_although_it_moved_meanwhile(run):
    bench = Bench(log())
    bench.may_save.clear()
    follower = bench.partitions[0].as_follower

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=4))
        for start in (2, 3):
            bench.clock.advance(5.0)
            await bench.fetch(data(0, high_watermark=4, log_start_offset=start))
        assert follower.start_offset == 0
        bench.may_save.set()
        await turns()
        assert follower.start_offset == 2
        bench.clock.advance(5.0)
        await bench.fetch(data(0, high_watermark=4, log_start_offset=3))
        await turns()
        assert follower.start_offset == 3

    run(main())


def test_log_starts_that_cannot_be_saved_are_tried_each_second_with_one_line_a_minute(run, caplog):
    bench = Bench(log())
    bench.save_fault = StorageFault("input/output error")

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=4))
        for _ in range(61):
            bench.clock.advance(1.0)
            await bench.fetch(data(0, high_watermark=4, log_start_offset=3))
            await turns()

    run(main())
    assert bench.saved == 61
    assert [one.getMessage() for one in caplog.records] == [
        "checkpoint failed: input/output error"
    ] * 2


@simulated
async def test_an_answer_from_before_the_leaders_next_epoch_is_not_applied():
    bench = Bench(log())
    step = asyncio.ensure_future(bench.lane._fetch_once(bench.connection))  # type: ignore[arg-type]
    await turns()
    bench.partitions[0].become_follower(image(leader=SECOND, epoch=EPOCH + 1))
    bench.connection.answer_all([data(0, GOOD)])
    await step
    assert bench.partitions[0].log.log_end_offset == 0


@pytest.mark.parametrize("code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 9_999])
@simulated
async def test_an_answer_that_refuses_everything_ends_the_connection(code):
    """A session that the leader does not know, or a code of a later version."""
    bench = Bench(log())
    step = asyncio.ensure_future(bench.lane._fetch_once(bench.connection))  # type: ignore[arg-type]
    await turns()
    bench.connection.answer_all([], int(code))
    with pytest.raises(KafkaError):
        await step


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
async def test_a_lane_that_catches_up_asks_for_no_more_than_its_rate_allows_in_a_second():
    """It would sleep for hours over 8 MiB, and not hear that the rate is another one."""
    for lane, rate, asked in (
        (CATCH_UP, 100, 100),
        (CATCH_UP, 100 * MIB, 8 * MIB),
        (HOT, 100, 8 * MIB),
    ):
        bench = Bench(log(), lane=lane, rate=rate)
        await bench.fetch(data(0))
        assert bench.connection.asked[0].max_bytes == asked


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


@simulated
async def test_a_leader_that_stays_away_is_logged_once(caplog):
    bench = Bench(log())
    with caplog.at_level(logging.INFO, fetch_lane.__name__):
        lane = asyncio.ensure_future(bench.lane._run())
        await asyncio.sleep(10 * fetch_lane.RETRY_S)
        lane.cancel()
    assert [record.getMessage() for record in caplog.records] == [
        f"fetching from broker {SECOND} failed: BROKER_NOT_AVAILABLE: broker {SECOND} is not alive"
    ]


class LostConnection(Connection):
    """The leader has ended; nobody has noticed yet."""

    def request_nowait(self, *_args, **_options):
        raise ConnectionLost("the broker closed the connection")


@simulated
async def test_a_fetch_that_hurries_on_a_lost_connection_is_no_bug():
    waiting = Waiting(log(), log())
    bugs: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, bug: bugs.append(bug))
    await waiting.begin()
    waiting.lane._connection = LostConnection()
    waiting.lane.follow(waiting.bench.partitions[1])
    await turns()
    assert not bugs
    await waiting.end()
