"""What must be said soon is said, although a fetch waits at the leader."""

from __future__ import annotations

import asyncio

from tests.support.follower_bench import (
    BROKER_EPOCH,
    EPOCH,
    GOOD,
    TOPIC_ID,
    Waiting,
    data,
    diverging,
    log,
    turns,
)
from tests.support.memory_peer import simulated
from tests.support.partitions import OWN, SECOND, image
from tidemill.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchResponse,
)


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
    await bench.fetch(diverging(0, 0))
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
