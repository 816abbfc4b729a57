"""Three brokers on one store: elections, fencing, returns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.unit.client.virtual_time import run_virtually
from tests.unit.metadata.small_cluster import SmallCluster
from tests.unit.metadata.three_brokers import TOPIC, partition, propose, three_brokers
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE, RETURNS_WAIT_S
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image import nodes
from tidemill.metadata.image.metadata_image import DeletedTopic, Delta
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules import decisions
from tidemill.metadata.rules.election import with_live_brokers
from tidemill.metadata.rules.topic_planner import ConfigChange, TopicSpec
from tidemill.metadata.store.coord import CoordConflict, Create, Delete, Node, Op, Put
from tidemill.metadata.store.memory_store import MemoryCoord


def test_one_broker_is_the_controller_and_all_agree(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        assert [one.is_controller for one in clusters] == [True, False, False]
        assert {one.image.controller_id for one in clusters} == {0}
        assert all(one.image.topics == clusters[0].image.topics for one in clusters)
        assert all(sorted(one.image.brokers) == [0, 1, 2] for one in clusters)
        assert not any(member.alarms for member in small.members.values())

    run(scenario())


def test_only_the_controller_creates_topics(run):
    async def scenario() -> None:
        _, clusters = await three_brokers()
        with pytest.raises(KafkaError) as refused:
            await clusters[1].create_topics([TopicSpec(name="u")])
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    run(scenario())


def test_I11_a_lost_leader_is_replaced_from_the_isr_at_a_higher_epoch_and_all_brokers_see_it(
    run,
):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        assert partition(clusters[0]).leader == 1
        small.crash(1)
        await small.catch_up()
        for cluster in (clusters[0], clusters[2]):
            now = partition(cluster)
            assert (now.leader, now.leader_epoch, now.isr) == (2, 1, (2, 0))
            assert sorted(cluster.image.brokers) == [0, 2]

    run(scenario())


def test_I33_a_lost_controller_is_replaced_in_a_new_epoch_and_elects(run):
    async def scenario() -> None:
        small = SmallCluster()
        clusters = await small.start(0, 1, 2)
        await clusters[0].create_topics([TopicSpec(name="t", assignments={0: [0, 1, 2]})])
        await small.catch_up()
        small.crash(0)
        await small.catch_up()
        assert clusters[1].is_controller
        assert not clusters[2].is_controller
        for cluster in clusters[1:]:
            assert (cluster.image.controller_id, cluster.image.controller_epoch) == (1, 2)
            assert partition(cluster).leader == 1
            assert partition(cluster).leader_epoch == 1

    run(scenario())


def test_I33_a_controller_that_was_replaced_while_disconnected_writes_nothing(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        # Given: the controller is disconnected, its session expires, broker 1 takes over.
        small.server.suspend(small.members[0].coord)
        small.server.expire(small.members[0].coord)
        await small.catch_up()
        assert clusters[1].is_controller
        # When: it reconnects and gets a request to write.
        small.server.resume(small.members[0].coord)
        before = small.server.scan("/")
        with pytest.raises(KafkaError) as refused:
            await clusters[0].create_topics([TopicSpec(name="u")])
        # Then: nothing has changed.
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert small.server.scan("/") == before

    run(scenario())


def test_I33_a_stale_controller_steps_down_when_its_write_is_refused(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        epoch = small.server.get(nodes.CONTROLLER_EPOCH)
        controller = small.server.get(nodes.CONTROLLER)
        assert epoch is not None
        assert controller is not None
        # Given: broker 0 is not notified of the change.
        small.notices_held = True
        other = small.members[1].coord
        value = nodes.encode_controller(nodes.StoredController(1, epoch.version + 1, 0))
        await other.multi(
            [
                Put(nodes.CONTROLLER, value, controller.version),
                Put(nodes.CONTROLLER_EPOCH, b"{}", epoch.version),
            ]
        )
        assert clusters[0].is_controller
        with pytest.raises(KafkaError) as refused:
            await clusters[0].create_topics([TopicSpec(name="u")])
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert not clusters[0].is_controller
        assert "u" not in small.stored_topics()

    run(scenario())


def test_a_partition_below_the_minimum_remembers_its_eligible_replicas(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        small.crash(1)
        await small.catch_up()
        small.crash(2)
        await small.catch_up()
        now = partition(clusters[0])
        assert (now.leader, now.isr, now.elr) == (0, (0,), (2,))

    run(scenario())


def test_another_minimum_of_replicas_clears_the_elr_in_the_store_too(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        for broker_id in (1, 2):
            small.crash(broker_id)
            await small.catch_up()
        change = ConfigChange(name="t", changes=[("min.insync.replicas", AlterOp.SET, "1")])
        await clusters[0].alter_topic_configs([change])
        now = partition(clusters[0])
        assert (now.isr, now.elr) == ((0,), ())
        assert small.stored_topics()["t"].partitions == (now,)

    run(scenario())


def test_another_minimum_forgets_nobody_who_has_everything_while_there_is_no_leader(run):
    async def scenario() -> None:
        small = SmallCluster()
        controller, *_ = await small.start(3, 0, 1, 2)
        await controller.create_topics([TOPIC])
        await small.catch_up()
        for broker_id in (1, 2, 0):
            small.crash(broker_id)
            await small.catch_up()
        assert partition(controller).elr == (2, 0)
        change = ConfigChange(name="t", changes=[("min.insync.replicas", AlterOp.SET, "1")])
        await controller.alter_topic_configs([change])
        # Then: of the two, the one that comes back whole leads.
        await small.start(0, unclean=True)
        assert partition(controller).leader == -1
        await small.start(2)
        assert (partition(controller).leader, partition(controller).isr) == (2, (2,))

    run(scenario())


def test_T22_what_was_written_before_is_read_although_the_store_answers_late(run, monkeypatch):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        coord = small.members[1].coord
        get, old = coord.get, await coord.get(nodes.HEAD)

        async def late(path: str, newest: bool = False) -> Node | None:
            """As a server of the store that lags behind: only `newest` waits for it."""
            return old if path == nodes.HEAD and not newest else await get(path, newest)

        monkeypatch.setattr(coord, "get", late)
        await clusters[0].create_topics([TopicSpec(name="u", partitions=1, replication_factor=1)])
        await clusters[1].catch_up()
        assert "u" not in clusters[1].image.topics
        await clusters[1].read_newest()
        assert "u" in clusters[1].image.topics

    run(scenario())


def test_the_in_sync_state_survives_a_stop_of_the_whole_cluster(run):
    async def scenario() -> None:
        small, _ = await three_brokers()
        # Given: 1 dies, then 2, then 0: the last two are eligible, 1 is not.
        for broker_id in (1, 2):
            small.crash(broker_id)
            await small.catch_up()
        small.crash(0)
        # When: 1 restarts first.
        (one,) = await small.start(1)
        assert partition(one).leader == -1
        # Then: there is no leader before 2, which has everything below the high watermark.
        (two,) = await small.start(2)
        now = partition(two)
        assert (now.leader, now.isr, now.elr) == (2, (2,), (0,))

    run(scenario())


def test_I14_an_unclean_broker_is_not_preferred_to_one_that_has_everything(run):
    async def scenario() -> None:
        small, _ = await three_brokers()
        for broker_id in (1, 2, 0):
            small.crash(broker_id)
            await small.catch_up()
        # Broker 0 led last, but restarts unclean; broker 2 was eligible and is not back yet.
        (zero,) = await small.start(0, unclean=True)
        assert partition(zero).leader == -1
        assert partition(zero).elr == (2,)
        await small.start(2)
        assert partition(zero).leader == 2

    run(scenario())


def test_producer_ids_of_two_brokers_never_overlap(run):
    async def scenario() -> None:
        _, clusters = await three_brokers()
        blocks = await asyncio.gather(*(one.reserve_producer_ids() for one in clusters))
        assert len({number for block in blocks for number in block}) == 3000

    run(scenario())


def test_a_clean_stop_hands_the_lead_over_at_once(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        del small.members[1]
        await clusters[1].close()
        await small.catch_up()
        assert partition(clusters[0]).leader == 2

    run(scenario())


def test_I34_every_broker_learns_that_a_topic_was_deleted_and_created_again(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        old_id = clusters[2].image.topics["t"].topic_id
        await clusters[0].delete_topics(["t"])
        await clusters[0].create_topics([TOPIC])
        await small.catch_up()
        assert clusters[2].image.topics == clusters[0].image.topics
        deleted = [gone for delta in small.members[2].deltas for gone in delta.topics_deleted]
        assert deleted == [DeletedTopic("t", old_id)]
        await clusters[0].delete_topics(["t"])
        await small.catch_up()
        assert not clusters[2].image.topics

    run(scenario())


def test_I33_of_two_brokers_that_campaign_one_becomes_the_controller(
    run,
    monkeypatch,
):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        coord = small.members[2].coord
        late_multi = coord.multi

        async def slow_multi(ops: Sequence[Op]) -> None:
            monkeypatch.undo()
            await clusters[1].catch_up()
            await late_multi(ops)

        monkeypatch.setattr(coord, "multi", slow_multi)
        small.crash(0)
        await clusters[2].catch_up()
        await small.catch_up()
        assert [one.is_controller for one in clusters[1:]] == [True, False]
        assert clusters[2].image.controller_id == 1

    run(scenario())


def test_an_election_that_may_lose_records_is_announced(run):
    async def scenario() -> None:
        small = SmallCluster()
        clusters = await small.start(0, 1)
        overrides: dict[str, str | None] = {"unclean.leader.election.enable": "true"}
        spec = TopicSpec(name="t", assignments={0: [1, 0]}, overrides=overrides)
        await clusters[0].create_topics([spec])
        await small.catch_up()
        await propose(clusters, [1], partition(clusters[1]))
        await small.catch_up()
        small.crash(1)
        await small.catch_up()
        assert partition(clusters[0]).leader == 0
        assert small.members[0].alarms == [
            "led by a replica that was not in sync; acknowledged records that it lacks are lost: "
            "t-0 (broker 0)"
        ]

    run(scenario())


def test_a_broker_that_is_about_to_stop_hands_its_leaderships_over_and_stays_in_sync(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        assert not clusters[1].has_left
        await clusters[1].leave()
        await small.catch_up()
        now = partition(clusters[1])
        assert (now.leader, now.leader_epoch, now.isr) == (2, 1, (1, 2, 0))
        assert clusters[1].has_left

    run(scenario())


def test_H10_a_broker_whose_disk_failed_leads_nothing(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        clusters[1].disk_failed()
        await small.catch_up()
        now = partition(clusters[0])
        assert (now.leader, now.isr) == (2, (2, 0))
        assert clusters[0].image.brokers[1].failed

    run(scenario())


def test_a_new_controller_waits_for_several_brokers_that_are_missing_at_once(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        small.crash(0)
        small.crash(1)
        await small.catch_up()
        assert clusters[2].is_controller
        assert (partition(clusters[2]).leader, partition(clusters[2]).isr) == (1, (1, 2, 0))
        # When: one of them comes back in time, and the other one does not.
        await small.start(0)
        assert partition(clusters[2]).leader == 1
        small.clock.advance(RETURNS_WAIT_S)
        small.members[2].coord._changed(nodes.BROKERS)
        await small.catch_up()
        now = partition(clusters[2])
        assert (now.leader, now.isr) == (2, (2, 0))

    run(scenario())


def test_a_controller_without_a_lease_does_not_look_for_returns_without_pause(monkeypatch):
    async def scenario() -> int:
        small, clusters = await three_brokers()
        small.crash(0)
        small.crash(1)
        await small.catch_up()
        small.clock.advance(RETURNS_WAIT_S)
        # When: the lease has run out, although the session is connected.
        monkeypatch.setattr(MemoryCoord, "lease_until", property(lambda _: -1.0))
        coord, looks = small.members[2].coord, 0
        children = coord.children

        async def counted(path: str) -> list[tuple[str, Node]]:
            nonlocal looks
            looks += 1
            return await children(path)

        monkeypatch.setattr(coord, "children", counted)
        follows = asyncio.create_task(clusters[2].run())
        await asyncio.wait([follows], timeout=10.0)
        seen = looks
        # Then: it goes on soon after it has one again.
        monkeypatch.undo()
        await asyncio.wait([follows], timeout=2.0)
        assert partition(clusters[2]).leader == 2
        follows.cancel()
        return seen

    assert 5 <= run_virtually(scenario()) <= 15


def test_a_controller_lets_in_who_registered_while_it_had_no_lease(monkeypatch):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        follows = asyncio.create_task(clusters[0].run())
        await asyncio.wait([follows], timeout=1.0)
        # When: others register anew while its lease has run out, and then it is renewed.
        monkeypatch.setattr(MemoryCoord, "lease_until", property(lambda _: -1.0))
        for broker_id in (1, 2):
            small.server.expire(small.members[broker_id].coord)
            await clusters[broker_id].catch_up()
        await asyncio.wait([follows], timeout=5.0)
        assert not clusters[1].may_act
        monkeypatch.undo()
        await asyncio.wait([follows], timeout=2.0)
        await clusters[1].catch_up()
        await clusters[2].catch_up()
        # Then: they are let in, although nothing else has changed.
        assert clusters[1].may_act
        assert clusters[2].may_act
        follows.cancel()

    run_virtually(scenario())


def test_a_campaign_that_the_store_did_not_answer_is_repeated(monkeypatch):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        coord, get, failures = small.members[1].coord, small.members[1].coord.get, 0

        async def unanswered_once(path: str, newest: bool = False) -> Node | None:
            nonlocal failures
            if path == nodes.CONTROLLER_EPOCH and clusters[1].image.controller_id == NO_LEADER:
                failures += 1
                if failures == 1:
                    raise StoreUnavailable("no answer")
            return await get(path, newest)

        follows = asyncio.create_task(clusters[1].run())
        await asyncio.wait([follows], timeout=1.0)
        monkeypatch.setattr(coord, "get", unanswered_once)
        small.crash(0)
        await asyncio.wait([follows], timeout=10.0)
        assert failures >= 1
        assert clusters[1].is_controller
        follows.cancel()

    run_virtually(scenario())


def test_preferred_leaders_are_elected_on_request(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        await clusters[1].leave()
        await small.catch_up()
        small.crash(1)
        await small.catch_up()
        (one,) = await small.start(1)
        await propose([clusters[0], one, clusters[2]], [0, 1, 2], partition(one), sender=2)
        await small.catch_up()
        where = TopicPartition("t", 0)
        assert await clusters[0].elect_leaders([where], unclean=False) == [None]
        assert partition(clusters[0]).leader == 1
        (refusal,) = await clusters[0].elect_leaders([where], unclean=False)
        assert refusal is not None
        assert refusal.code is ErrorCode.ELECTION_NOT_NEEDED

    run(scenario())


def test_S11_a_death_that_concerns_many_partitions_is_decided_in_slices(run, monkeypatch):
    """A loop that stands still for a long round makes peers take the controller for hung."""
    sizes: list[int] = []

    def counted(partition, live, rules, told):
        sizes[-1] += 1
        return with_live_brokers(partition, live, rules, told)

    async def count_turns(work: asyncio.Task[None]) -> None:
        while not work.done():
            sizes.append(0)
            await asyncio.sleep(0)

    async def scenario() -> None:
        small, clusters = await three_brokers()
        many = {index: [1, 2, 0] for index in range(3 * PARTITIONS_CHANGED_PER_SLICE)}
        await clusters[0].create_topics([TopicSpec(name="many", assignments=many)])
        await small.catch_up()
        monkeypatch.setattr(decisions, "with_live_brokers", counted)
        small.crash(1)
        await count_turns(asyncio.ensure_future(small.catch_up()))
        assert {one.leader for one in clusters[0].image.topics["many"].partitions} == {2}

    run(scenario())
    assert max(sizes) == PARTITIONS_CHANGED_PER_SLICE
    assert sum(sizes) > 2 * PARTITIONS_CHANGED_PER_SLICE


def test_L1_a_session_that_ends_while_partitions_follow_the_registration_is_not_the_last_one(run):
    """What was registered is gone with it: this broker is not registered, and joins again."""

    async def scenario() -> None:
        world = SmallCluster()
        _, cluster = await world.start(0, 1)
        coord = world.members[1].coord
        lives = [cluster.broker_epoch]

        def end_it_once(_delta: Delta) -> Steps[None]:
            yield
            if cluster.broker_epoch not in lives and len(lives) < 2:
                lives.append(cluster.broker_epoch)
                world.server.expire(coord)

        cluster.subscribe_in_steps(end_it_once)
        world.server.expire(coord)
        with suppress(StoreUnavailable):
            await cluster.catch_up()
        await world.catch_up()
        assert len(lives) == 2
        assert cluster.may_act
        assert cluster.broker_epoch not in lives

    run(scenario())


def test_L1_a_session_that_ends_before_its_registration_is_heard_of_is_not_the_last_one(
    run, monkeypatch
):
    async def scenario() -> None:
        world = SmallCluster()
        _, cluster = await world.start(0, 1)
        coord = world.members[1].coord
        registered: list[Op] = []
        multi = coord.multi

        async def ended_once(ops: Sequence[Op]) -> None:
            await multi(ops)
            made = [one for one in ops if isinstance(one, Create) and one.ephemeral]
            if made and not registered:
                registered.extend(made)
                world.server.expire(coord)  # it is over when the caller goes on

        monkeypatch.setattr(coord, "multi", ended_once)
        world.server.expire(coord)
        with suppress(StoreUnavailable):
            await cluster.catch_up()
        assert registered
        assert not cluster.may_act
        await world.catch_up()
        assert cluster.may_act

    run(scenario())


@pytest.mark.parametrize("removed", [0, 1])
def test_L1_a_broker_whose_registration_somebody_has_removed_registers_again(run, removed):
    """Broker 0 is the controller: another broker can take its office, or it itself again."""

    async def scenario() -> None:
        world, clusters = await three_brokers()
        path, cluster = nodes.broker_path(removed), clusters[removed]
        epoch, node = cluster.broker_epoch, world.server.get(path)
        assert node is not None
        session = world.server.session()
        await session.start()
        await session.multi([Delete(path, node.version)])
        with pytest.raises(StoreUnavailable, match="was removed"):
            await cluster.catch_up()
        assert not cluster.may_act
        assert not cluster.is_controller
        await world.catch_up()
        assert cluster.may_act
        assert cluster.broker_epoch > epoch
        (controller,) = [one for one in clusters if one.is_controller]
        (made,) = await controller.create_topics([TopicSpec(name="next")])
        assert made.code is ErrorCode.NONE

    run(scenario())


def test_I15_what_a_registration_was_to_say_does_not_come_after_the_next_one(run, monkeypatch):
    """The next one is a node of the same path, session and version."""

    async def scenario() -> None:
        world, clusters = await three_brokers()
        cluster, coord = clusters[2], world.members[2].coord
        late: list[Sequence[Op]] = []

        async def unanswered(ops: Sequence[Op]) -> None:
            late.append(ops)
            raise StoreUnavailable("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(coord, "multi", unanswered)
            cluster.report_unheard(1)
            with pytest.raises(StoreUnavailable):
                await cluster.catch_up()
        assert await cluster._try_withdraw()
        await world.catch_up()
        epoch = cluster.broker_epoch
        with pytest.raises(CoordConflict):
            await coord.multi(late[0])
        await world.catch_up()
        assert clusters[0].image.brokers[2].epoch == cluster.broker_epoch == epoch
        assert cluster.may_act

    run(scenario())


def test_a_registration_changes_although_other_brokers_register_meanwhile(run, monkeypatch):
    async def scenario() -> None:
        world, clusters = await three_brokers()
        coord, epoch = world.members[2].coord, clusters[2].broker_epoch
        get, others = coord.get, [3, 4]

        async def read_slowly(path: str, newest: bool = False) -> Node | None:
            node = await get(path, newest)
            if path == nodes.BROKER_EPOCH and others:
                await world.register(others.pop())
            return node

        monkeypatch.setattr(coord, "get", read_slowly)
        clusters[2].disk_failed()
        await clusters[2].catch_up()
        await world.catch_up()
        assert clusters[0].image.brokers[2].failed
        assert clusters[2].broker_epoch == epoch

    run(scenario())
