"""The longest log leads where nobody is certain: what the controller asks, and decides by it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tests.unit.metadata.three_brokers import TOPIC, partition, three_brokers
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import LOG_END_QUESTIONS_MAX, LOG_END_WAIT_S
from tidemill.metadata import log_end_survey
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.features.feature_levels import OLDER_SOFTWARE
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.log_ends import LogEnd, LogEndQuestion
from tidemill.metadata.rules.topic_planner import ConfigChange, TopicSpec

ORDERS = TopicPartition("t", 0)


class Replicas:
    """Answers for the brokers of a cluster; one without an end does not answer."""

    def __init__(self, **ends: tuple[int, int]) -> None:
        self.ends = {int(name[1:]): LogEnd(*end) for name, end in ends.items()}
        self.asked: list[int] = []
        self.counts = defaultdict[int, list[int]](list)
        """Questions of each request, by broker."""

    async def ask(self, broker_id: int, questions: list[LogEndQuestion]):
        self.asked.append(broker_id)
        self.counts[broker_id].append(len(questions))
        if broker_id not in self.ends:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        return dict.fromkeys(questions, self.ends[broker_id])


async def all_ended_unclean() -> tuple[SmallCluster, Cluster]:
    """All brokers are back, one after the other; broker 0 is the controller."""
    small, _ = await three_brokers()
    for broker_id in (1, 2, 0):
        small.crash(broker_id)
    await small.start(0, 1, 2, unclean=True)
    return small, small.members[0].cluster


async def ask(small: SmallCluster, controller: Cluster, replicas: Replicas) -> None:
    controller.survey.ask = replicas.ask
    await controller.survey.look()
    await small.catch_up()


def test_I12_the_longest_log_leads_once_all_suspects_have_told_their_ends(run):
    async def scenario() -> None:
        small, controller = await all_ended_unclean()
        assert controller.is_controller
        waiting = partition(controller)
        assert (waiting.leader, sorted(waiting.suspects)) == (-1, [0, 1, 2])
        replicas = Replicas(b0=(0, 5), b1=(0, 4), b2=(0, 7))
        await ask(small, controller, replicas)
        now = partition(controller)
        assert (now.leader, now.isr) == (2, (2,))
        assert now.unclean_epoch == now.leader_epoch == waiting.leader_epoch + 1
        assert small.members[0].alarms[-1] == (
            "no replica ended cleanly, so the one with the longest log leads; what was "
            "acknowledged before it was on that disk may be missing: t-0 (broker 2)"
        )
        replicas.asked.clear()
        await ask(small, controller, replicas)
        assert not replicas.asked

    run(scenario())


def test_I12_a_suspect_that_does_not_answer_is_asked_again_and_only_that_one(run):
    async def scenario() -> None:
        small, controller = await all_ended_unclean()
        replicas = Replicas(b0=(0, 5), b1=(0, 4))
        await ask(small, controller, replicas)
        assert partition(controller).leader == -1
        small.clock.advance(10 * LOG_END_WAIT_S)
        replicas.asked.clear()
        await ask(small, controller, replicas)
        assert (partition(controller).leader, replicas.asked) == (-1, [2])
        replicas.ends[2] = LogEnd(0, 3)
        await ask(small, controller, replicas)
        assert partition(controller).leader == 0

    run(scenario())


def test_I15_a_broker_that_restarts_after_its_answer_is_asked_again(run):
    async def scenario() -> None:
        small, controller = await all_ended_unclean()
        await ask(small, controller, Replicas(b1=(0, 9), b2=(0, 5)))
        small.crash(1)
        await small.start(1, unclean=True)
        replicas = Replicas(b0=(0, 1), b1=(0, 2))
        await ask(small, controller, replicas)
        assert replicas.asked == [0, 1]
        assert partition(controller).leader == 2

    run(scenario())


def test_a_suspect_that_is_down_is_waited_for_until_somebody_decides(run):
    async def scenario() -> None:
        small, controller = await all_ended_unclean()
        small.crash(2)
        await small.catch_up()
        replicas = Replicas(b0=(0, 4), b1=(0, 5))
        await ask(small, controller, replicas)
        assert (partition(controller).leader, replicas.asked) == (-1, [])
        assert await controller.elect_leaders([ORDERS], unclean=True) == [None]
        assert partition(controller).leader == 1
        assert partition(controller).suspects == ()

    run(scenario())


def test_an_election_that_somebody_asks_for_is_refused_if_no_replica_answers(run):
    async def scenario() -> None:
        _, controller = await all_ended_unclean()
        controller.survey.ask = Replicas().ask
        (refusal,) = await controller.elect_leaders([ORDERS], unclean=True)
        assert refusal is not None
        assert refusal.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE

    run(scenario())


def test_only_the_controller_asks(run):
    async def scenario() -> None:
        small, _ = await all_ended_unclean()
        replicas = Replicas(b0=(0, 5), b1=(0, 4), b2=(0, 7))
        await ask(small, small.members[1].cluster, replicas)
        assert not replicas.asked

    run(scenario())


def test_a_topic_that_allows_it_goes_on_without_a_replica_that_stays_silent(run):
    async def scenario() -> None:
        small = SmallCluster()
        clusters = await small.start(0, 1, 2)
        overrides: dict[str, str | None] = {"unclean.leader.election.enable": "true"}
        spec = TopicSpec(name="t", assignments={0: [1]}, overrides=overrides)
        await clusters[0].create_topics([spec])
        await clusters[0].reassign({ORDERS: [1, 0, 2]})
        small.crash(1)
        await small.catch_up()
        assert partition(clusters[0]).leader == -1
        replicas = Replicas(b2=(0, 3))
        await ask(small, clusters[0], replicas)
        assert (partition(clusters[0]).leader, replicas.asked) == (-1, [0, 2])
        small.clock.advance(LOG_END_WAIT_S)
        await ask(small, clusters[0], replicas)
        assert partition(clusters[0]).leader == 2

    run(scenario())


def test_a_broker_whose_software_cannot_answer_is_not_asked_and_counts_as_silent(run, caplog):
    async def scenario() -> None:
        small = SmallCluster()
        await small.start(2, software=OLDER_SOFTWARE)
        await small.start(0, 1)
        await small.members[2].cluster.create_topics([TOPIC])
        for broker_id in (1, 2, 0):
            small.crash(broker_id)
        await small.start(0, 1, unclean=True)
        await small.start(2, unclean=True, software=OLDER_SOFTWARE)
        controller = small.members[0].cluster
        replicas = Replicas(b0=(0, 5), b1=(0, 4), b2=(0, 7))
        for _ in range(2):
            await ask(small, controller, replicas)
            small.clock.advance(2 * LOG_END_WAIT_S)
        assert (partition(controller).leader, sorted(set(replicas.asked))) == (-1, [0, 1])
        said = [one.message for one in caplog.records if "cannot tell" in one.message]
        assert said == [
            "broker 2 runs an older version and cannot tell where its logs end: upgrade it"
        ]
        await ask_for_any_leader(small, controller)
        assert partition(controller).leader == 0

    run(scenario())


async def many_ended_unclean(partitions: int) -> tuple[SmallCluster, Cluster]:
    """The same with one topic of many partitions, which all wait."""
    small = SmallCluster()
    clusters = await small.start(0, 1, 2)
    spec = TopicSpec(name="t", assignments=dict.fromkeys(range(partitions), (1, 2)))
    await clusters[0].create_topics([spec])
    for broker_id in (1, 2):
        small.crash(broker_id)
        await small.catch_up()
    await small.start(1, 2, unclean=True)
    return small, clusters[0]


def leaders(controller: Cluster) -> set[int]:
    return {one.leader for one in controller.image.topics["t"].partitions}


@pytest.mark.slow
def test_I16_a_look_asks_about_more_partitions_than_one_request_may_have(run):
    async def scenario() -> None:
        small, controller = await many_ended_unclean(LOG_END_QUESTIONS_MAX + 2)
        assert leaders(controller) == {-1}
        replicas = Replicas(b1=(0, 4), b2=(0, 7))
        await ask(small, controller, replicas)
        assert leaders(controller) == {2}
        assert replicas.counts == {1: [LOG_END_QUESTIONS_MAX, 2], 2: [LOG_END_QUESTIONS_MAX, 2]}

    run(scenario())


def test_partitions_beyond_one_request_count_as_silent_too_if_their_broker_is(run, monkeypatch):
    async def scenario() -> None:
        monkeypatch.setattr(log_end_survey, "LOG_END_QUESTIONS_MAX", 3)
        small, controller = await many_ended_unclean(5)
        keys = [("unclean.leader.election.enable", AlterOp.SET, "true")]
        await controller.alter_topic_configs([ConfigChange(name="t", changes=keys)])
        replicas = Replicas(b1=(0, 4))
        await ask(small, controller, replicas)
        assert replicas.counts == {1: [3, 2], 2: [3]}
        small.clock.advance(LOG_END_WAIT_S)
        await ask(small, controller, replicas)
        assert leaders(controller) == {1}

    run(scenario())


async def ask_for_any_leader(small: SmallCluster, controller: Cluster) -> None:
    (refusal,) = await controller.elect_leaders([ORDERS], unclean=True)
    assert refusal is None
    await small.catch_up()


def test_I16_an_answer_that_comes_while_the_controller_writes_is_not_forgotten(run):
    """With many partitions the last answers come while those before them lead to elections."""

    async def scenario() -> None:
        small, clusters = await three_brokers()
        await clusters[0].create_topics([replace(TOPIC, name="other")])
        await small.catch_up()
        for broker_id in (1, 2, 0):
            small.crash(broker_id)
        await small.start(0, 1, 2, unclean=True)
        controller, coord = small.members[0].cluster, small.members[0].coord
        replicas = Replicas(b0=(0, 5), b1=(0, 4), b2=(0, 7))
        late, write = controller.image.topics["t"].topic_id, coord.multi

        async def ask_but_for_one(broker_id: int, questions: list[LogEndQuestion]):
            answers = await replicas.ask(broker_id, questions)
            return {one: end for one, end in answers.items() if one.topic_id != late}

        async def write_while_the_last_answers(ops):
            coord.multi = write
            controller.survey.ask = replicas.ask
            await controller.survey.look()
            await write(ops)

        controller.survey.ask = ask_but_for_one
        await controller.survey.look()
        coord.multi = write_while_the_last_answers
        await small.catch_up()
        assert controller.survey.ask == replicas.ask
        assert controller.image.topics["other"].partitions[0].leader == 2
        assert partition(controller).leader == 2

    run(scenario())
