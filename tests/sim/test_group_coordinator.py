"""The group coordinator on three simulated brokers: its partition moves, no state is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.sim.clients import retry_until_ready
from tests.sim.replicas import eventually, leader_of, replicas_agree
from tidemill.client.admin.group_offsets import GroupOffsets
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.coordinators.runtime import shard_loader
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.metadata.image.metadata_image import OFFSETS_TOPIC
from tidemill.testing.sim.world import SESSION_TIMEOUT_S, SimWorld, host_name
from tidemill.wire.generated.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidemill.wire.generated.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

IDS = (0, 1, 2)
ORDERS = TopicPartition("orders", 0)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
GROUP = "shop"
NEVER_S = 1e9
RECOVERY_S = 10.0
"""From the loss of a coordinator to an answer of the next, with three failed loads between."""
SEEDS = pytest.mark.parametrize("seed", range(3))


class Shop:
    """A cluster of three brokers with one partition of offsets, and a client."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world

    def client(self) -> ClusterClient:
        return ClusterClient(self.world.client_net(), self.world.bootstrap)

    @property
    def coordinator(self) -> int:
        return leader_of(self.world, self.alive, OFFSETS)

    alive: tuple[int, ...] = IDS

    async def commit(self, offset: int) -> None:
        async def attempt() -> None:
            async with self.client() as cluster:
                await GroupOffsets(cluster, GROUP).commit({ORDERS: offset})

        await retry_until_ready(attempt)

    async def committed(self) -> int:
        async def attempt() -> int:
            async with self.client() as cluster:
                found = await GroupOffsets(cluster, GROUP).fetch([ORDERS])
                return found[ORDERS].offset

        return await retry_until_ready(attempt)

    async def crash_coordinator(self) -> int:
        """Cut the power of the coordinating broker and wait for its successor."""
        old = self.coordinator
        self.world.crash(old)
        self.alive = tuple(one for one in IDS if one != old)
        await eventually(lambda: self._has_leader())
        return old

    def _has_leader(self) -> bool:
        found = [self.world.broker(one).replicas.find(*OFFSETS) for one in self.alive]
        return any(copy is not None and copy.is_leader for copy in found)

    async def restart(self, broker_id: int) -> None:
        await self.world.restart(broker_id)
        self.alive = IDS
        await eventually(lambda: replicas_agree(self.world, IDS, OFFSETS))


VALUES = {
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "min.insync.replicas": 2,
}


def play(scenario: Callable[[Shop], Awaitable[None]], seed: int) -> None:
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        shop = Shop(world)
        async with shop.client() as cluster:
            await Admin(cluster).create_topic(ORDERS.topic, partitions=1, replication=3)
        await shop.commit(0)
        await eventually(lambda: replicas_agree(world, IDS, OFFSETS))
        await scenario(shop)

    SimWorld(seed, values=VALUES).run(main)


@SEEDS
def test_I28_committed_offsets_survive_the_loss_of_every_coordinator_in_turn(seed):
    async def scenario(shop: Shop) -> None:
        coordinators = set()
        for round_ in range(1, 5):
            await shop.commit(round_ * 10)
            coordinators.add(shop.coordinator)
            crashed = await shop.crash_coordinator()
            assert await shop.committed() == round_ * 10
            await shop.commit(round_ * 10 + 1)
            await shop.restart(crashed)
            assert await shop.committed() == round_ * 10 + 1
        assert len(coordinators) > 1

    play(scenario, seed)


@SEEDS
def test_F104_I28_offsets_of_a_cluster_that_has_grown_survive_the_loss_of_its_first_broker(seed):
    async def main(world: SimWorld) -> None:
        await world.start_broker(0)
        shop = Shop(world)
        async with shop.client() as cluster:
            await Admin(cluster).create_topic(ORDERS.topic, partitions=1, replication=1)
        await shop.commit(5)
        for broker_id in (1, 2):
            await world.start_broker(broker_id)
        await eventually(lambda: replicas_agree(world, IDS, OFFSETS))
        assert await shop.crash_coordinator() == 0
        assert await shop.committed() == 5

    SimWorld(seed, values=VALUES).run(main)


@SEEDS
def test_I28_commits_in_flight_while_the_coordinator_dies_are_never_undone(seed):
    async def scenario(shop: Shop) -> None:
        acknowledged = 0

        async def commit_all() -> None:
            nonlocal acknowledged
            for offset in range(1, 60):
                await shop.commit(offset)
                acknowledged = offset

        seen = []

        async def watch() -> None:
            while True:
                before = acknowledged
                seen.append(await shop.committed())
                assert seen[-1] >= before
                await asyncio.sleep(0.05)

        writer, watcher = asyncio.ensure_future(commit_all()), asyncio.ensure_future(watch())
        await asyncio.sleep(0.3)
        crashed = await shop.crash_coordinator()
        await shop.restart(crashed)
        await writer
        watcher.cancel()
        assert await shop.committed() == 59
        assert seen == sorted(seen)

    play(scenario, seed)


async def lose_coordinator_while_disks_fail(shop: Shop) -> None:
    """The next coordinator cannot read its log at first."""
    await shop.commit(10)
    for broker_id in IDS:
        disk = shop.world.disk(broker_id)
        disk.is_resident = False
        disk.fail("pread", OFFSETS_TOPIC, times=3)
    await shop.crash_coordinator()
    async with asyncio.timeout(RECOVERY_S):
        assert await shop.committed() == 10


@SEEDS
def test_a_coordinator_that_cannot_read_its_log_serves_when_the_disk_recovers(seed):
    play(lose_coordinator_while_disks_fail, seed)


def test_the_simulation_finds_a_coordinator_that_loads_only_once(monkeypatch):
    """A planted bug: a failed load is never repeated."""
    monkeypatch.setattr(shard_loader, "pause_s_after", lambda _failures: NEVER_S)
    with pytest.raises(TimeoutError):
        play(lose_coordinator_while_disks_fail, 0)


@SEEDS
def test_F55_a_member_continues_with_the_next_coordinator(seed):
    """Its generation and its assignment are in the log: no rebalance is needed."""

    async def scenario(shop: Shop) -> None:
        async with shop.client() as cluster:
            member_id, generation = await _join(cluster)
            assert await _sync(cluster, member_id, generation) == b"all of it"
        await shop.crash_coordinator()

        async def beat() -> int:
            async with shop.client() as cluster:
                answer = await _ask(
                    cluster,
                    HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id),
                    HeartbeatResponse,
                )
                return answer.error_code

        assert await retry_until_ready(lambda: _checked(beat)) == ErrorCode.NONE

    play(scenario, seed)


def ask_a_coordinator_without_a_lease(seed: int) -> None:
    """Nobody vouches for it either: another one may coordinate by now (I8)."""

    async def scenario(shop: Shop) -> None:
        async with shop.client() as cluster:
            member_id, generation = await _join(cluster)
            old = shop.coordinator
            others = [host_name(one) for one in IDS if one != old]
            shop.world.net.isolate(host_name(old), others)
            shop.world.session(old).suspend()
            await asyncio.sleep(0.7 * SESSION_TIMEOUT_S)
            beat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
            answer = await cluster.ask_broker(old, beat, HeartbeatResponse)
            assert answer.error_code == ErrorCode.NOT_COORDINATOR

    play(scenario, seed)


@SEEDS
def test_I8_a_coordinator_without_a_lease_answers_nobody(seed):
    ask_a_coordinator_without_a_lease(seed)


async def _checked(ask):
    code = await ask()
    if code:
        raise KafkaError(ErrorCode(code), "")
    return code


async def _coordinator(cluster: ClusterClient) -> int:
    answer = await cluster.ask_any(
        FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), FindCoordinatorResponse
    )
    await cluster.refresh([])
    found = answer.coordinators[0]
    if found.error_code:
        raise KafkaError(ErrorCode(found.error_code), found.error_message or "")
    return found.node_id


async def _ask(cluster, request, response_type):
    return await cluster.ask_broker(await _coordinator(cluster), request, response_type)


async def _join(cluster: ClusterClient) -> tuple[str, int]:
    member_id = ""
    for _ in range(2):
        answer = await _ask(
            cluster,
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            JoinGroupResponse,
        )
        member_id = answer.member_id
    assert answer.error_code == ErrorCode.NONE
    return member_id, answer.generation_id


async def _sync(cluster: ClusterClient, member_id: str, generation: int) -> bytes:
    answer = await _ask(
        cluster,
        SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"all of it")],
        ),
        SyncGroupResponse,
    )
    assert answer.error_code == ErrorCode.NONE
    return answer.assignment


def test_the_first_group_at_a_broker_that_is_not_the_controller_gets_a_compacted_topic():
    async def main(world: SimWorld) -> None:
        for broker_id in IDS:
            await world.start_broker(broker_id)
        controller = world.broker(0).cluster.image.controller_id
        (asked, *_) = (one for one in IDS if one != controller)
        async with ClusterClient(world.client_net(), world.bootstrap) as cluster:
            await cluster.refresh([])
            request = FindCoordinatorRequest(coordinator_keys=[GROUP])
            await cluster.ask_broker(asked, request, FindCoordinatorResponse)
        made = world.broker(controller).cluster.image.topics[OFFSETS_TOPIC]
        assert (len(made.partitions), made.replication_factor) == (5, 3)
        assert made.config.cleanup_policy == ("compact",)

    SimWorld(1, values={"offsets.topic.num.partitions": 5, "num.partitions": 2}).run(main)
