"""Mending beside everything else that happens to a log: cuts, starts that move, other damage."""

from __future__ import annotations

import asyncio

from tests.sim.replicas import eventually, replica, replicas_agree
from tests.sim.test_damage import RECORDS, closed, damage, log_of, verify
from tests.sim.three_brokers import IDS, ORDERS, SEEDS, Bench, run
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.storage.files.disk import Buffer
from tidemill.storage.files.log_file_names import SNAPSHOT_SUFFIX
from tidemill.storage.state.log_damage import DamagedRange, LogDamage, store_damage
from tidemill.wire.batch import iter_headers


def positions(bench: Bench, broker_id: int, path: str) -> list[int]:
    """Where the batches of a segment begin."""
    data = bench.world.disk(broker_id).read_file(path)
    return [position for position, _ in iter_headers(memoryview(data))]


def test_I14_damage_that_is_known_below_the_log_start_keeps_no_follower_out():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        follower = bench.followers[0]
        for broker_id in IDS:
            log_of(bench, broker_id).advance_start(RECORDS // 2)
        log = log_of(bench, follower)
        await asyncio.sleep(400.0)  # retention drops segments
        assert log.segments.oldest.base_offset > 5
        directory = log.directory
        await bench.world.stop_broker(follower)
        old = LogDamage([DamagedRange(3, 5)])  # retention has passed it since it was stored
        store_damage(bench.world.disk(follower), directory, old.encode())
        await bench.world.start_broker(follower)
        await eventually(lambda: replicas_agree(bench.world, IDS, ORDERS))
        await eventually(lambda: not log_of(bench, follower).damage)

    run(scenario, 0)


@SEEDS
def test_I14_a_follower_is_cut_whose_header_is_damaged_where_the_cut_is(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        await asyncio.sleep(120.0)  # a checkpoint has passed it
        follower = bench.followers[0]
        active = log_of(bench, follower).segments.active
        starts = positions(bench, follower, active.path)
        assert len(starts) > 3
        bench.world.crash(follower, power_loss=False)
        disk = bench.world.disk(follower)
        disk.flip_bit(active.path, starts[2] + 16)
        for name in disk.list_names(active.directory):  # so producers are replayed from batches
            if name.endswith(SNAPSHOT_SUFFIX):
                disk.unlink(f"{active.directory}/{name}")
        await bench.world.start_broker(follower)
        await eventually(lambda: not log_of(bench, follower).damage)
        await verify(bench)

    run(scenario, seed)


def test_I10_a_cut_while_another_replica_is_asked_ends_the_mend():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        follower = bench.followers[0]
        mender = bench.world.broker(follower)._data.mender
        log, segment = log_of(bench, follower), closed(bench, follower, place=-2)
        ask, cut_at = mender.tools.ask, segment.base_offset + 3
        is_cut = False

        async def cut_first(source: int, partition: Partition, offset: int) -> Buffer:
            nonlocal is_cut
            records = await ask(source, partition, offset)
            if not is_cut:
                is_cut = True
                log.truncate_to(cut_at)
            return records

        mender.tools.ask = cut_first
        damage(bench, follower, segment, at=0.0)
        await eventually(lambda: is_cut)
        await bench.send(5)
        await eventually(lambda: not log.damage)
        assert log.segments.active is list(log.segments)[-1]
        await verify(bench)

    run(scenario, 0)


def test_I16_a_former_leader_is_cut_whose_damage_is_in_what_nobody_else_has():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        old = bench.leader
        others, log = bench.followers, log_of(bench, old)
        bench.cut_off(old)
        bench.world.session(old).suspend()
        value, delivery = await bench.begin()
        await eventually(lambda: log.log_end_offset > RECORDS)
        damage(bench, old, log.segments.active, at=0.999)
        await eventually(lambda: bool(log.damage))
        bench.world.session(old).expire()
        await eventually(lambda: any(replica(bench.world, i, ORDERS).is_leader for i in others))
        bench.world.net.heal_all()
        bench.world.session(old).resume()
        bench.history.sent(ORDERS, await delivery.offset(), value)
        await verify(bench)

    run(scenario, 0)


def test_I1_a_leader_that_is_deposed_while_it_asks_gives_nothing_up():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        old = bench.leader
        partition, log = replica(bench.world, old, ORDERS), log_of(bench, old)
        tools = bench.world.broker(old)._data.mender.tools
        ask = tools.ask
        answers = [
            KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "its log ends before"),
            KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no answer in time"),
        ]

        async def depose(source: int, asked: Partition, offset: int) -> Buffer:
            """One follower is far behind, the other is silent, and leads then."""
            if not answers:
                return await ask(source, asked, offset)
            await eventually(lambda: not partition.is_leader)
            raise answers.pop(0)

        tools.ask = depose
        damage(bench, old, closed(bench, old))
        await eventually(lambda: bool(log.damage.to_mend))
        bench.world.session(old).expire()
        await eventually(lambda: not log.damage.is_open)
        assert not log.damage.given_up
        await verify(bench)

    run(scenario, 0)
