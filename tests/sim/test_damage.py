"""Damage at rest on simulated disks: it is mended from other replicas, and never served (I17)."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.clients import drain
from tests.sim.replicas import eventually, log_bytes, replica, replicas_agree
from tests.sim.three_brokers import IDS, ORDERS, SEEDS, Bench, run
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.testing.sim.disk import SimDisk
from tidemill.testing.sim.disk_file import SimFile

RECORDS = 200


def log_of(bench: Bench, broker_id: int) -> FilePartitionLog:
    log = replica(bench.world, broker_id, ORDERS).log
    assert isinstance(log, FilePartitionLog)
    return log


def closed(bench: Bench, broker_id: int, place: int = 1) -> Segment:
    """A segment in the middle of the log."""
    segments = list(log_of(bench, broker_id).segments)
    assert len(segments) > 3
    return segments[place]


def damage(bench: Bench, broker_id: int, segment: Segment, *, at: float = 0.5) -> None:
    """Flip a bit at this place of the segment, and tell as a read would that finds it."""
    bench.world.disk(broker_id).flip_bit(segment.path, int(segment.size_bytes * at))
    bench.world.broker(broker_id).directory.doubt([segment.path])


async def mended(bench: Bench, *broker_ids: int) -> None:
    """Wait until the damage was found, and then until it is gone."""
    telemetry = [bench.world.broker(i).telemetry for i in broker_ids]
    await eventually(lambda: all(one.damage_mended for one in telemetry))
    await eventually(lambda: all(not log_of(bench, i).damage for i in broker_ids))


async def verify(bench: Bench) -> None:
    for broker_id in IDS:
        for segment in log_of(bench, broker_id).segments:
            _read_from_disk(bench.world.disk(broker_id), segment)
    await bench.check()


def _read_from_disk(disk: SimDisk, segment: Segment) -> None:
    data = disk.read_file(segment.path)
    assert len(data) == segment.size_bytes


@SEEDS
@pytest.mark.parametrize("at", [0.0, 0.5, 0.999])
def test_I17_a_followers_damaged_segment_is_mended_from_its_leader(seed, at):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        follower = bench.followers[0]
        damage(bench, follower, closed(bench, follower), at=at)
        await mended(bench, follower)
        await verify(bench)

    run(scenario, seed)


@pytest.mark.parametrize("at", [0.0, 0.9999])
@pytest.mark.parametrize("leads", [True, False])
def test_I17_a_sector_that_cannot_be_read_is_mended_if_it_was_never_read_before(
    leads, at, monkeypatch
):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id in IDS:  # nothing knows the segment's index
            await bench.world.stop_broker(broker_id)
            await bench.world.start_broker(broker_id)
        await eventually(lambda: replicas_agree(bench.world, IDS, ORDERS))
        broker_id = bench.leader if leads else bench.followers[0]
        segment = closed(bench, broker_id)
        _make_unreadable(monkeypatch, segment, at=int(segment.size_bytes * at))
        bench.world.broker(broker_id).directory.doubt([segment.path])
        await mended(bench, broker_id)
        await verify(bench)

    run(scenario, 0)


def _make_unreadable(monkeypatch: pytest.MonkeyPatch, segment: Segment, *, at: int) -> None:
    """The medium has lost this byte of the segment's file, whoever opens it."""
    file = segment.file()
    assert isinstance(file, SimFile)
    lost, pread = file._file, SimFile.pread

    def try_pread(self: SimFile, size: int, position: int) -> bytes:
        if self._file is lost and position <= at < position + size:
            raise StorageFault("input/output error")
        return pread(self, size, position)

    monkeypatch.setattr(SimFile, "pread", try_pread)


@SEEDS
def test_I17_a_leaders_damaged_segment_is_mended_from_a_follower_and_it_leads_on(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        leader = bench.leader
        damage(bench, leader, closed(bench, leader))
        await mended(bench, leader)
        assert bench.leader == leader
        await verify(bench)

    run(scenario, seed)


@SEEDS
def test_I17_a_read_that_finds_damage_has_it_mended_and_gets_every_record(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id in IDS:  # what this process has written it believes
            await bench.world.stop_broker(broker_id)
            await bench.world.start_broker(broker_id)
        await eventually(lambda: replicas_agree(bench.world, IDS, ORDERS))
        segment, disk = closed(bench, bench.leader), bench.world.disk(bench.leader)
        disk.flip_bit(segment.path, segment.size_bytes // 2)
        disk.is_resident = False  # so the bytes come from the medium
        bench.history.check_final(ORDERS, await drain(bench.world, ORDERS))
        assert bench.world.broker(bench.leader).telemetry.damage_mended == 1
        await verify(bench)

    run(scenario, seed)


@SEEDS
def test_I17_the_segment_that_grows_is_mended_too(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        segment = log_of(bench, bench.leader).segments.active
        damage(bench, bench.leader, segment, at=0.0)
        await mended(bench, bench.leader)
        await verify(bench)

    run(scenario, seed)


@SEEDS
def test_I17_all_replicas_are_mended_that_are_damaged_in_different_places(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id, at in zip(IDS, (0.1, 0.5, 0.9), strict=True):
            damage(bench, broker_id, closed(bench, broker_id), at=at)
        await mended(bench, *IDS)
        await verify(bench)

    run(scenario, seed)


def test_I17_what_all_replicas_have_lost_is_given_up_and_never_served():
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id in IDS:
            damage(bench, broker_id, closed(bench, broker_id), at=0.5)
        await eventually(lambda: all(bench.world.broker(i).telemetry.damage_given_up for i in IDS))
        log = log_of(bench, bench.leader)
        (lost,) = log.damage.ranges
        with pytest.raises(KafkaError) as refused:
            log.read(lost.start_offset, max_bytes=1, end_offset=log.log_end_offset)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
        before = log.read(lost.start_offset - 1, max_bytes=1 << 20, end_offset=RECORDS)
        assert before.size_bytes
        await bench.send(1)  # the others go on

    run(scenario, 0)


@SEEDS
def test_I14_a_follower_that_lost_flushed_bytes_gets_in_sync_with_all_of_them_again(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        follower = bench.followers[0]
        active = log_of(bench, follower).segments.active
        bench.world.crash(follower, power_loss=False)
        bench.world.disk(follower).flip_bit(active.path, 16)  # its first batch is no batch any more
        await bench.world.start_broker(follower)
        await verify(bench)
        assert len(log_bytes(replica(bench.world, follower, ORDERS))) > 0

    run(scenario, seed)


@SEEDS
def test_I17_damage_that_is_known_outlives_a_restart(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        follower = bench.followers[0]
        segment = closed(bench, follower)
        bench.cut_off(follower)
        damage(bench, follower, segment)
        await eventually(lambda: bool(log_of(bench, follower).damage.to_mend))
        await asyncio.sleep(120.0)  # a checkpoint has passed it: recovery does not look there
        bench.world.crash(follower, power_loss=True)
        bench.world.net.heal_all()
        await bench.world.start_broker(follower)
        assert log_of(bench, follower).damage.to_mend
        await eventually(lambda: not log_of(bench, follower).damage)
        await verify(bench)

    run(scenario, seed)


@SEEDS
def test_I17_a_damaged_log_of_a_compacted_topic_becomes_that_of_another_replica(seed):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id in (bench.leader, bench.followers[0]):
            damage(bench, broker_id, closed(bench, broker_id, place=2), at=0.3)
            await mended(bench, broker_id)
        await verify(bench)

    run(scenario, seed, configs={"cleanup.policy": "compact"})


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
@pytest.mark.parametrize("leads", [True, False])
def test_I17_what_others_have_comes_back_into_a_log_that_has_lost_something_before(cleanup, leads):
    async def scenario(bench: Bench) -> None:
        await bench.send(RECORDS)
        for broker_id in IDS:
            damage(bench, broker_id, closed(bench, broker_id), at=0.5)
        telemetry = {i: bench.world.broker(i).telemetry for i in IDS}
        await eventually(lambda: all(one.damage_given_up for one in telemetry.values()))
        await eventually(lambda: not any(log_of(bench, i).damage.is_open for i in IDS))
        lost = {i: log_of(bench, i).damage.given_up for i in IDS}
        broker_id = bench.leader if leads else bench.followers[0]
        given_up, count = telemetry[broker_id].damage_given_up, telemetry[broker_id].damage_mended
        damage(bench, broker_id, closed(bench, broker_id), at=0.1)
        await eventually(lambda: telemetry[broker_id].damage_mended > count)
        await eventually(lambda: not log_of(bench, broker_id).damage.is_open)
        assert telemetry[broker_id].damage_given_up == given_up
        assert {i: log_of(bench, i).damage.given_up for i in IDS} == lost

    run(scenario, 0, configs={"cleanup.policy": cleanup})
