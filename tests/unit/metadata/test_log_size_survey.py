"""Who plans moves knows how large partitions are, and does not wait for those who do not say."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tests.unit.metadata.test_joined_brokers import controller_of, founded, partitions
from tests.unit.metadata.test_moves import pass_time
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import LOG_SIZES_ASKED_MAX, LOG_SIZES_KEPT_S
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.rules.topic_planner import TopicSpec


class Logs:
    """Answers for the brokers of a cluster; those in `silent` do not answer."""

    def __init__(self, sizes: Mapping[int, int], silent: Collection[int] = ()) -> None:
        self._sizes = sizes
        self.silent = silent
        self.asked: list[tuple[int, list[int]]] = []

    async def ask(self, broker_id: int, names: list[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked.append((broker_id, [name.partition for name in names]))
        if broker_id in self.silent:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        return {name: self._sizes[name.partition] for name in names}


def coming(small: SmallCluster) -> list[int]:
    return [index for index, one in enumerate(partitions(small)) if one.adding]


async def joined(logs: Logs, *assigned: list[int]) -> tuple[SmallCluster, Cluster]:
    """A third broker has joined; the controller may ask, but has not been answered."""
    small = await founded(*assigned)
    controller = controller_of(small)
    controller.log_sizes.ask = logs.ask
    await small.start(2)
    return small, controller


def test_moves_to_a_broker_that_joins_wait_until_leaders_have_told_their_sizes(run):
    async def scenario() -> None:
        logs = Logs({0: 100, 1: 1, 2: 1, 3: 100, 4: 1, 5: 1})
        small, controller = await joined(logs, *[[0]] * 6)
        await pass_time(small, 2)
        assert coming(small) == []
        await controller.log_sizes.look()
        await pass_time(small, 2)
        assert coming(small) == [0, 1]

    run(scenario())


def test_each_leader_is_asked_for_what_it_leads(run):
    async def scenario() -> None:
        logs = Logs(dict.fromkeys(range(6), 1))
        _small, controller = await joined(logs, *[[0, 1], [1, 0]] * 3)
        await controller.log_sizes.look()
        assert sorted(logs.asked) == [(0, [0, 2, 4]), (1, [1, 3, 5])]

    run(scenario())


def test_a_plan_does_not_wait_for_leaders_that_do_not_answer(run):
    async def scenario() -> None:
        small, controller = await joined(Logs({}, silent=[0, 1]), *[[0], [1]] * 3)
        await controller.log_sizes.look()
        await pass_time(small, 2)
        assert coming(small) == [0, 1]

    run(scenario())


def test_a_leader_that_hangs_is_left_out(run, monkeypatch):
    monkeypatch.setattr("tidemill.metadata.log_size_survey.LOG_SIZES_WAIT_S", 0.0)

    async def never(_broker_id: int, _names: Collection[TopicPartition]) -> dict:
        return await asyncio.Event().wait()

    async def scenario() -> None:
        _small, controller = await joined(Logs({}), [0], [1])
        controller.log_sizes.ask = never
        await controller.log_sizes.look()
        assert controller.log_sizes.try_sizes() == {}

    run(scenario())


def test_a_size_that_is_not_told_any_more_counts_as_it_was_told_last(run):
    async def scenario() -> None:
        logs = Logs({0: 7, 1: 8})
        _small, controller = await joined(logs, [0], [1])
        await controller.log_sizes.look()
        logs.silent = [0]
        await controller.log_sizes.look()
        known = {TopicPartition("t", 0): 7, TopicPartition("t", 1): 8}
        assert controller.log_sizes.try_sizes() == known

    run(scenario())


def test_sizes_of_partitions_that_are_gone_are_forgotten(run):
    async def scenario() -> None:
        small, controller = await joined(Logs({0: 7}), [0])
        await controller.log_sizes.look()
        await controller.delete_topics(["t"])
        await small.catch_up()
        await controller.log_sizes.look()
        assert controller.log_sizes.try_sizes() == {}

    run(scenario())


def test_an_answer_counts_only_for_what_was_asked_and_no_log_is_smaller_than_nothing(run):
    async def tell(_broker_id: int, names: Collection[TopicPartition]) -> dict:
        return {**dict.fromkeys(names, -5), TopicPartition("other", 0): 1}

    async def scenario() -> None:
        _small, controller = await joined(Logs({}), [0])
        controller.log_sizes.ask = tell
        await controller.log_sizes.look()
        assert controller.log_sizes.try_sizes() == {TopicPartition("t", 0): 0}

    run(scenario())


@pytest.mark.parametrize(("after_s", "is_asked_again"), [(1, False), (LOG_SIZES_KEPT_S, True)])
def test_sizes_count_for_a_while(run, after_s, is_asked_again):
    async def scenario() -> None:
        small, controller = await joined(Logs({0: 7}), [0])
        await controller.log_sizes.look()
        small.clock.advance(after_s)
        known = controller.log_sizes.try_sizes()
        assert known == (None if is_asked_again else {TopicPartition("t", 0): 7})

    run(scenario())


def test_the_loop_asks_once_somebody_wants_to_know(run):
    async def scenario() -> None:
        logs = Logs({0: 7})
        _small, controller = await joined(logs, [0])
        controller.log_sizes._wakeup.clear()
        loop = asyncio.create_task(controller.log_sizes.run())
        await asyncio.sleep(0)
        assert logs.asked == []
        assert controller.log_sizes.try_sizes() is None
        for _ in range(5):
            await asyncio.sleep(0)
        assert controller.log_sizes.try_sizes() == {TopicPartition("t", 0): 7}
        assert logs.asked == [(0, [0])]
        loop.cancel()

    run(scenario())


def test_one_request_asks_for_a_bounded_number_of_logs(run):
    async def scenario() -> None:
        count = LOG_SIZES_ASKED_MAX + 1
        logs = Logs(dict.fromkeys(range(count), 1))
        small = SmallCluster()
        (controller,) = await small.start(0)
        await controller.create_topics([TopicSpec(name="t", partitions=count)])
        controller.log_sizes.ask = logs.ask
        await controller.log_sizes.look()
        assert [len(asked) for _, asked in logs.asked] == [LOG_SIZES_ASKED_MAX, 1]

    run(scenario())


def test_bytes_are_evened_out_too_if_that_is_wanted(run):
    async def scenario() -> None:
        logs = Logs({0: 9, 1: 9, 2: 1, 3: 1})
        small = await founded([0], [0], [1], [1], flags=("auto.rebalance=always",))
        controller = controller_of(small)
        controller.log_sizes.ask = logs.ask
        await pass_time(small, 60)
        assert coming(small) == []
        await controller.log_sizes.look()
        await pass_time(small, 2)
        assert len(coming(small)) == 2

    run(scenario())
