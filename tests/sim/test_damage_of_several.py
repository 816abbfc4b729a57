"""Several replicas are damaged at once: what one of them still has comes back (I17, ADR 0025)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.sim.replicas import eventually, replicas_agree
from tests.sim.test_damage import RECORDS, closed, damage, log_of, mended, verify
from tests.sim.test_damage_races import positions
from tests.sim.three_brokers import IDS, ORDERS, Bench, run
from tidemill.core.errors import DiskBusy
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.state.log_damage import DamagedRange

_Run = Callable[..., Awaitable[object]]


async def settled(bench: Bench) -> None:
    """All have given something up, and nothing is left to be mended."""
    logs = [log_of(bench, i) for i in IDS]
    await eventually(lambda: all(log.damage.given_up for log in logs))
    await eventually(lambda: not any(log.damage.is_open for log in logs))


def refusing_reads(run_on_disk: _Run) -> _Run:
    """Too many reads wait; other work is done."""

    async def run_or_refuse(step: Callable[[], object], work: DiskWork = DiskWork.READ) -> object:
        if work is DiskWork.READ:
            raise DiskBusy("too many reads wait for the disk")
        return await run_on_disk(step, work)

    return run_or_refuse


def lost_offsets(bench: Bench, broker_id: int) -> list[int]:
    ranges = log_of(bench, broker_id).damage.given_up
    return [offset for one in ranges for offset in range(one.start_offset, one.end_offset)]


def damage_batch(bench: Bench, broker_id: int, place: int) -> None:
    """Damage this batch of the same segment on each replica."""
    segment = closed(bench, broker_id)
    start = positions(bench, broker_id, segment.path)[place]
    damage(bench, broker_id, segment, at=(start + 65) / segment.size_bytes)


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
def test_I17_a_follower_gives_up_only_what_its_leader_has_given_up(cleanup):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        damage_batch(bench, bench.followers[0], 1)
        for broker_id in IDS:
            damage_batch(bench, broker_id, 5)
        await settled(bench)
        lost = log_of(bench, bench.leader).damage.given_up
        assert log_of(bench, bench.followers[0]).damage.given_up == lost

    run(scenario, 0, configs={"cleanup.policy": cleanup})


def test_I17_a_leader_takes_from_each_follower_what_the_others_lack():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        first, second = bench.followers
        for broker_id, places in ((bench.leader, (1, 5)), (first, (1,)), (second, (5,))):
            for place in places:
                damage_batch(bench, broker_id, place)
        telemetry = [bench.world.broker(i).telemetry for i in IDS]
        await eventually(lambda: all(one.damage_mended or one.damage_given_up for one in telemetry))
        await eventually(lambda: not any(log_of(bench, i).damage.is_open for i in IDS))
        assert not any(one.damage_given_up for one in telemetry)
        await verify(bench)

    run(scenario, 0)


def test_I17_only_the_batches_are_lost_that_nobody_has_where_damage_overlaps():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        first, second = bench.followers
        for broker_id, places in (
            (bench.leader, (2, 3, 4, 5)),
            (first, (2, 3, 4)),
            (second, (3, 4, 5)),
        ):
            for place in places:
                damage_batch(bench, broker_id, place)
        start = closed(bench, bench.leader).base_offset
        await settled(bench)
        for broker_id in IDS:
            assert lost_offsets(bench, broker_id) == [start + 3, start + 4]

    run(scenario, 0)


@pytest.mark.parametrize("beside", [-1, 1])
@pytest.mark.parametrize("leads", [True, False])
def test_I17_what_is_damaged_beside_a_lost_batch_comes_back(beside, leads):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id in IDS:
            damage_batch(bench, broker_id, 5)
        await settled(bench)
        lost = log_of(bench, bench.leader).damage.given_up
        broker_id = bench.leader if leads else bench.followers[0]
        telemetry = bench.world.broker(broker_id).telemetry
        count, given_up = telemetry.damage_mended, telemetry.damage_given_up
        damage_batch(bench, broker_id, 5 + beside)
        await eventually(
            lambda: telemetry.damage_mended > count or telemetry.damage_given_up > given_up
        )
        await eventually(lambda: not log_of(bench, broker_id).damage.is_open)
        assert log_of(bench, broker_id).damage.given_up == lost
        assert telemetry.damage_mended > count

    run(scenario, 0)


def test_I17_a_follower_whose_disk_is_too_busy_to_read_is_waited_for(monkeypatch):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id in bench.followers:  # what this process has written it reads at once
            await bench.world.stop_broker(broker_id)
            await bench.world.start_broker(broker_id)
            await eventually(lambda: replicas_agree(bench.world, IDS, ORDERS))
        for disk in [bench.world.disk(broker_id) for broker_id in bench.followers]:
            disk.is_resident = False
            monkeypatch.setattr(disk, "run", refusing_reads(disk.run))
        damage_batch(bench, bench.leader, 5)
        telemetry = bench.world.broker(bench.leader).telemetry
        await eventually(lambda: bool(telemetry.damage_found))
        await asyncio.sleep(120.0)  # more than ten tries
        assert not log_of(bench, bench.leader).damage.given_up
        monkeypatch.undo()
        await mended(bench, bench.leader)
        await verify(bench)

    run(scenario, 0)


def test_I1_what_was_noted_as_lost_and_comes_back_from_another_replica_is_read_again():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        log, offset = log_of(bench, bench.leader), closed(bench, bench.leader).base_offset + 5
        damage_batch(bench, bench.leader, 5)
        log.damage.give_up(DamagedRange(offset, offset + 1))  # and then it crashed
        await mended(bench, bench.leader)
        assert log.read(offset, max_bytes=1, end_offset=log.log_end_offset).size_bytes

    run(scenario, 0)
