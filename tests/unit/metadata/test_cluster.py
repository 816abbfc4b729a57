"""One broker alone: its session, restarts, and writes in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from tests.unit.metadata.small_cluster import Member, SmallCluster, count_of
from tidemill.core.config.broker_config import Endpoint, broker_config
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable, UserError
from tidemill.core.rng import SeededRng
from tidemill.metadata.cluster import Cluster
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.metadata.store.coord import CoordConflict, Node, Op


def test_a_single_broker_registers_is_elected_and_knows_it(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        assert cluster.is_controller
        assert cluster.may_act
        assert cluster.image.controller_id == 0
        assert cluster.image.controller_epoch == 1
        broker = cluster.image.brokers[0]
        assert (broker.host, broker.port, count_of(broker.epoch)) == ("host-0", 9092, 1)
        assert len(cluster.image.cluster_id) == 22

    run(scenario())


def test_the_cluster_id_is_known_before_joining_and_stays(run):
    async def scenario() -> None:
        small = SmallCluster()
        coord = small.server.session()
        first = Cluster(coord, broker_config(), SeededRng(1), clock=small.clock)
        cluster_id = await first.identify()
        assert cluster_id
        assert not first.image.brokers
        await first.start(Endpoint("h", 1), unclean=False)
        assert first.image.cluster_id == cluster_id
        (second,) = await small.start(1)
        assert second.image.cluster_id == cluster_id

    run(scenario())


def test_F96_a_clean_restart_keeps_topics_and_leader_epochs(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", overrides={"segment.ms": "9"})])
        topic = cluster.image.topics["t"]
        await cluster.close()
        (again,) = await small.start(0)
        assert again.image.topics["t"] == topic
        assert count_of(again.broker_epoch) == 2
        assert again.image.controller_epoch == 2

    run(scenario())


def test_I14_an_unclean_start_takes_a_new_leader_epoch_before_it_serves(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", partitions=600)])
        small.crash(0)
        (again,) = await small.start(0, unclean=True)
        partitions = again.image.topics["t"].partitions
        assert {(one.leader, one.leader_epoch, one.isr) for one in partitions} == {(0, 1, (0,))}

    run(scenario())


def test_producer_ids_are_given_out_once(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        first = await cluster.reserve_producer_ids()
        second = await cluster.reserve_producer_ids(10)
        assert (first, second) == (range(0, 1000), range(1000, 1010))
        small.crash(0)
        (again,) = await small.start(0)
        assert (await again.reserve_producer_ids(1)) == range(1010, 1011)

    run(scenario())


def test_a_suspended_session_may_not_act(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        small.server.suspend(small.members[0].coord)
        assert not cluster.may_act
        assert not cluster.is_controller
        with pytest.raises(KafkaError) as refused:
            await cluster.create_topics([TopicSpec(name="t")])
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        small.server.resume(small.members[0].coord)
        await small.catch_up()
        assert cluster.is_controller

    run(scenario())


def test_a_broker_whose_session_was_lost_joins_again_in_a_new_epoch(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        small.server.expire(small.members[0].coord)
        assert not cluster.may_act
        await small.catch_up()
        assert cluster.is_controller
        assert count_of(cluster.broker_epoch) == 2
        assert cluster.image.topics["t"].partitions[0].leader == 0

    run(scenario())


def test_a_new_session_may_not_act_before_the_broker_is_registered_in_it(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        small.server.expire(small.members[0].coord)
        await small.members[0].coord.start()
        assert not cluster.may_act

    run(scenario())


class LostAnswers:
    """A session whose next multis have an unknown outcome: each is done or not, as `done` says."""

    def __init__(self, member: Member, done: Sequence[bool], monkeypatch) -> None:
        self._whole = member.coord.multi
        self._done = list(done)
        monkeypatch.setattr(member.coord, "multi", self.multi)

    async def multi(self, ops: Sequence[Op]) -> None:
        if not self._done:
            await self._whole(ops)
        else:
            if self._done.pop(0):
                await self._whole(ops)
            raise StoreUnavailable("no answer")


@pytest.mark.parametrize("done", [[True], [False]])
def test_a_write_whose_outcome_is_unknown_is_settled_and_made_exactly_once(run, monkeypatch, done):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        LostAnswers(small.members[0], done, monkeypatch)
        (made,) = await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        assert made.code is ErrorCode.NONE
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics) == ["t"]

    run(scenario())


@pytest.mark.parametrize("done", [[True, True], [False, True], [False, False]])
def test_a_write_whose_outcome_stays_unknown_is_found_or_never_made(run, monkeypatch, done):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        coord, whole_get = small.members[0].coord, small.members[0].coord.get
        lost_gets = 1 if done[0] else 0

        async def lost_get(path: str, newest: bool = False) -> Node | None:
            nonlocal lost_gets
            if lost_gets:
                lost_gets -= 1
                raise StoreUnavailable("no answer")
            return await whole_get(path, newest)

        LostAnswers(small.members[0], done[:1] if done[0] else done, monkeypatch)
        monkeypatch.setattr(coord, "get", lost_get)
        with pytest.raises(StoreUnavailable):
            await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        assert "t" not in cluster.image.topics
        await cluster.create_topics([TopicSpec(name="u", partitions=1)])
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics)
        assert ("t" in cluster.image.topics) == any(done)

    run(scenario())


def test_I16_who_registered_is_let_in_although_another_change_has_settled_the_doubt(
    run, monkeypatch
):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        LostAnswers(small.members[0], [False, False], monkeypatch)
        with pytest.raises(StoreUnavailable):
            await small.start(1)  # broker 0 cannot tell whether it has let it in
        await cluster.reassign({})
        await small.catch_up()
        assert small.members[1].cluster.may_act

    run(scenario())


def test_I16_who_registers_while_the_image_is_in_doubt_is_let_in_after_a_change_has_settled_it(
    run, monkeypatch
):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        LostAnswers(small.members[0], [False, False], monkeypatch)
        with pytest.raises(StoreUnavailable):
            await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        await small.register(1)
        await cluster.reassign({})  # reads the registration, and serves nobody
        await small.catch_up()
        assert small.members[1].cluster.may_act

    run(scenario())


def test_a_write_that_nobody_waits_for_any_more_cannot_come_late(run, monkeypatch):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        coord = small.members[0].coord
        whole_multi, whole_get = coord.multi, coord.get
        late: list[Sequence[Op]] = []

        async def lost_multi(ops: Sequence[Op]) -> None:
            late.append(ops)
            raise StoreUnavailable("no answer")

        async def lost_get(path: str, newest: bool = False) -> Node | None:
            raise StoreUnavailable("no answer")

        monkeypatch.setattr(coord, "multi", lost_multi)
        monkeypatch.setattr(coord, "get", lost_get)
        with pytest.raises(StoreUnavailable):
            await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        monkeypatch.setattr(coord, "multi", whole_multi)
        monkeypatch.setattr(coord, "get", whole_get)
        await cluster.create_topics([TopicSpec(name="u", partitions=1)])
        with pytest.raises(CoordConflict):
            await whole_multi(late[0])
        assert sorted(small.stored_topics()) == sorted(cluster.image.topics) == ["u"]

    run(scenario())


def test_run_follows_the_store_until_cancelled(run):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (other,) = await small.start(1)
        seen = asyncio.Event()
        cluster.subscribe(lambda delta: seen.set() if delta.after.brokers.keys() == {0} else None)
        loop = asyncio.create_task(cluster.run())
        await other.close()
        await seen.wait()
        loop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loop

    run(scenario())


def test_run_tries_again_after_the_store_failed(run, monkeypatch):
    async def scenario() -> None:
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (other,) = await small.start(1)
        coord = small.members[0].coord
        whole_children = coord.children

        async def failing_children(path: str) -> list[tuple[str, Node]]:
            monkeypatch.setattr(coord, "children", whole_children)
            raise StoreUnavailable("disk trouble")

        monkeypatch.setattr(coord, "children", failing_children)
        monkeypatch.setattr("tidemill.metadata.cluster._RETRY_AFTER_S", 0)
        seen = asyncio.Event()
        cluster.subscribe(lambda delta: seen.set() if delta.after.brokers.keys() == {0} else None)
        loop = asyncio.create_task(cluster.run())
        await other.close()
        await seen.wait()
        loop.cancel()
        assert small.members[0].alarms == ["metadata: disk trouble"]
        await asyncio.wait([loop])

    run(scenario())


def test_two_brokers_with_one_id_cannot_both_join(run):
    async def scenario() -> None:
        small = SmallCluster()
        await small.start(0)
        with pytest.raises(UserError, match=r"node\.id=0: another broker has this id"):
            await small.start(0)

    run(scenario())


def test_who_returns_before_its_session_has_ended_replaces_its_registration_and_says_so(
    run, caplog
):
    async def scenario() -> None:
        small = SmallCluster()
        await small.register(0, directory_id=UUID(int=1))
        epoch = small.members[0].cluster.broker_epoch
        assert caplog.text == ""
        await small.register(0, directory_id=UUID(int=1))
        assert small.members[0].cluster.broker_epoch > epoch
        assert "replaced its own registration" in caplog.text

    run(scenario())
