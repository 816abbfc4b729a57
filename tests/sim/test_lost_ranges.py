"""A range that no replica has: the partition gets other replicas all the same (ADR 0025)."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.replicas import eventually, leader_of, replica, replicas_agree
from tests.sim.three_brokers import IDS, SEEDS, Bench, run
from tidemill.client.admin.replica_admin import reassign
from tidemill.client.admin.topic_admin import Admin
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.storage.files.log_file_names import LOST_SUFFIX, offset_path
from tidemill.storage.log.interface import PartitionLog
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.wire.batch import iter_headers
from tidemill.wire.records import iter_records

SINGLE = TopicPartition("single", 0)
VALUES = [b"%d" % number for number in range(200)]


async def _produce(bench: Bench) -> None:
    await Admin(bench.cluster).create_topic(SINGLE.topic, partitions=1, replication=1)
    for value in VALUES:
        delivery = await bench.producer.send(SINGLE.topic, value, partition=0)
        await delivery.offset()


async def _lose_a_batch(bench: Bench, broker_id: int) -> DamagedRange:
    """Damage a closed segment of the only replica, and wait until a batch is given up."""
    log = replica(bench.world, broker_id, SINGLE).log
    assert isinstance(log, FilePartitionLog)
    segment = list(log.segments)[1]
    bench.world.disk(broker_id).flip_bit(segment.path, segment.size_bytes // 2)
    bench.world.broker(broker_id).directory.doubt([segment.path])
    await eventually(lambda: bool(log.damage.given_up))
    (lost,) = log.damage.given_up
    kept = offset_path(log.directory, lost.start_offset, LOST_SUFFIX)
    disk = bench.world.disk(broker_id)
    await eventually(lambda: disk.exists(kept))  # the note comes first
    await eventually(lambda: disk.size(kept) > 0)
    return lost


def _values(log: PartitionLog, lost: DamagedRange) -> list[bytes | None]:
    """All that can be read before and after the lost range."""
    found: list[bytes | None] = []
    for start, end in ((0, lost.start_offset), (lost.end_offset, log.log_end_offset)):
        offset = start
        while offset < end:
            slice_ = log.read(offset, max_bytes=1 << 20, end_offset=end, at_least_one=True)
            data = b"".join(slice_.chunks if slice_.load is None else slice_.load())
            for position, header in iter_headers(memoryview(data)):
                batch = memoryview(data)[position : position + header.size_bytes]
                found += [record.value for record in iter_records(batch, header)]
                offset = header.next_offset
    return found


def _check_copy(log: PartitionLog, lost: DamagedRange) -> None:
    with pytest.raises(KafkaError) as refused:
        log.read(lost.start_offset, max_bytes=1, end_offset=log.log_end_offset)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert _values(log, lost) == [*VALUES[: lost.start_offset], *VALUES[lost.end_offset :]]


@SEEDS
def test_I16_I17_new_replicas_have_all_but_what_is_lost_and_refuse_that_too(seed):
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await _produce(bench)
        (first,) = [i for i in IDS if world.broker(i).replicas.find(*SINGLE) is not None]
        others = [broker_id for broker_id in IDS if broker_id != first]
        lost = await _lose_a_batch(bench, first)
        await reassign(bench.cluster, {SINGLE: [first, *others]})
        await eventually(lambda: replicas_agree(world, IDS, SINGLE))
        await asyncio.sleep(1.0)  # the copies are flushed
        world.crash(first)
        for broker_id in others:  # also after a restart of each
            world.crash(broker_id)
            await world.restart(broker_id)
        await world.restart(first)
        await eventually(lambda: replicas_agree(world, IDS, SINGLE))
        for broker_id in IDS:
            _check_copy(replica(world, broker_id, SINGLE).log, lost)
        assert leader_of(world, IDS, SINGLE) in IDS

    run(scenario, seed)


@pytest.mark.parametrize("places", [(0.5, 0.2), (0.2, 0.5)])
def test_I17_a_second_loss_in_a_segment_does_not_hide_the_first(places):
    async def scenario(bench: Bench) -> None:
        world = bench.world
        await _produce(bench)
        (first,) = [i for i in IDS if world.broker(i).replicas.find(*SINGLE) is not None]
        log, telemetry = replica(world, first, SINGLE).log, world.broker(first).telemetry
        assert isinstance(log, FilePartitionLog)
        for count, place in enumerate(places, start=1):
            segment = list(log.segments)[1]
            world.disk(first).flip_bit(segment.path, int(segment.size_bytes * place))
            world.broker(first).directory.doubt([segment.path])
            await eventually(lambda wanted=count: telemetry.damage_given_up == wanted)
            await asyncio.sleep(10.0)
        assert len(log.damage.given_up) == len(places)

    run(scenario, 0)
