"""The queue of logs to be made."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tidemill.core.ids import TopicId, TopicPartition
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.replication.pending_logs import PendingLogs

NAMES = [TopicPartition("t", index) for index in range(3)]


def topic(number: int = 1, name: str = "t") -> TopicImage:
    return TopicImage(
        name=name,
        topic_id=TopicId(UUID(int=number)),
        partitions=(),
        config=TopicConfig(),
        overrides={},
    )


@pytest.fixture
def pending() -> PendingLogs:
    made = PendingLogs()
    for name in NAMES:
        made.want(name, topic())
    return made


def names_of(group: list[tuple[TopicPartition, TopicImage]]) -> list[TopicPartition]:
    return [name for name, _ in group]


def test_the_longest_waiting_partition_is_taken_first(pending):
    assert names_of(pending.take(2)) == NAMES[:2]
    assert names_of(pending.take(2)) == NAMES[2:]
    assert pending.take(2) == []


def test_a_failed_partition_waits_for_the_retry(pending):
    pending.tried(pending.take(3))
    pending.want(NAMES[0], topic())
    assert pending.take(3) == []
    pending.retry_failed()
    assert names_of(pending.take(3)) == NAMES


def test_a_log_that_is_being_made_is_not_taken_twice(pending):
    pending.take(3)
    pending.retry_failed()
    assert pending.take(3) == []


def test_a_name_that_now_belongs_to_another_topic_is_taken_again(pending):
    group = pending.take(3)
    pending.want(NAMES[1], topic(2))
    assert pending.take(3) == []
    pending.tried(group)
    assert pending.take(3) == [(NAMES[1], topic(2))]


def test_waiting_ends_when_every_log_of_the_topic_was_tried(run, pending):
    async def wait() -> list[bool]:
        seen = []
        waiting = asyncio.create_task(pending.wait_tried(["t", "unknown"]))
        for count in (2, 1):
            group = pending.take(count)
            await asyncio.sleep(0)
            seen.append(waiting.done())
            pending.tried(group)
        await waiting
        return seen

    assert run(wait()) == [False, False]
    assert not pending.has_untried("t")
    assert len(pending) == 3, "failed logs stay pending"


def test_a_forgotten_partition_is_not_waited_for(pending):
    for name in NAMES:
        pending.forget(name)
    assert not pending.has_untried("t")
    assert len(pending) == 0


def test_a_partition_forgotten_while_it_is_made_holds_its_waiters(pending):
    group = pending.take(3)
    for name in NAMES:
        pending.forget(name)
    assert pending.has_untried("t")
    pending.tried(group)
    assert not pending.has_untried("t")


def test_work_that_is_already_there_ends_the_wait_at_once(run, pending):
    run(pending.wait_work(3600))


def test_what_fails_again_and_again_is_not_tried_without_a_pause(run, pending):
    """Found by simulation: on a full disk the same log was tried hundreds of times a second."""

    async def scenario() -> None:
        await pending.wait_work(60.0)
        pending.tried(pending.take(3))
        pending.retry_failed()
        pending.tried(pending.take(3))
        waiting = asyncio.ensure_future(pending.wait_work(60.0))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    run(scenario())
