"""The queue of logs that are to be made."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.replication.pending_logs import Unopened

NAMES = [TopicPartition("t", index) for index in range(3)]


def topic(number: int = 1, name: str = "t") -> TopicImage:
    return TopicImage(
        name=name, topic_id=UUID(int=number), partitions=(), config=TopicConfig(), overrides={}
    )


@pytest.fixture
def unopened() -> Unopened:
    made = Unopened()
    for name in NAMES:
        made.want(name, topic())
    return made


def names_of(group: list[tuple[TopicPartition, TopicImage]]) -> list[TopicPartition]:
    return [name for name, _ in group]


def test_who_waits_longest_is_taken_first(unopened: Unopened) -> None:
    assert names_of(unopened.take(2)) == NAMES[:2]
    assert names_of(unopened.take(2)) == NAMES[2:]
    assert unopened.take(2) == []


def test_what_failed_waits_until_it_is_asked_for_again(unopened: Unopened) -> None:
    unopened.tried(unopened.take(3))
    unopened.want(NAMES[0], topic())
    assert unopened.take(3) == []
    unopened.retry_failed()
    assert names_of(unopened.take(3)) == NAMES


def test_what_is_in_the_making_is_not_begun_twice(unopened: Unopened) -> None:
    unopened.take(3)
    unopened.retry_failed()
    assert unopened.take(3) == []


def test_a_name_that_became_another_topics_is_taken_again(unopened: Unopened) -> None:
    group = unopened.take(3)
    unopened.want(NAMES[1], topic(2))
    assert unopened.take(3) == []
    unopened.tried(group)
    assert unopened.take(3) == [(NAMES[1], topic(2))]


def test_waiting_ends_when_every_log_of_the_topic_was_tried(unopened: Unopened) -> None:
    async def wait() -> list[bool]:
        seen = []
        waiting = asyncio.create_task(unopened.wait_tried(["t", "unknown"]))
        for count in (2, 1):
            group = unopened.take(count)
            await asyncio.sleep(0)
            seen.append(waiting.done())
            unopened.tried(group)
        await waiting
        return seen

    assert asyncio.run(wait()) == [False, False]
    assert not unopened.has_untried("t")
    assert len(unopened) == 3, "they failed, so they are still here"


def test_nobody_waits_for_what_was_forgotten(unopened: Unopened) -> None:
    for name in NAMES:
        unopened.forget(name)
    assert not unopened.has_untried("t")
    assert len(unopened) == 0


def test_what_is_forgotten_in_the_making_holds_waiters_until_it_ended(unopened: Unopened) -> None:
    group = unopened.take(3)
    for name in NAMES:
        unopened.forget(name)
    assert unopened.has_untried("t")
    unopened.tried(group)
    assert not unopened.has_untried("t")


def test_work_that_came_before_is_not_waited_for(unopened: Unopened) -> None:
    asyncio.run(unopened.wait_work(3600))
