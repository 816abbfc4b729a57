"""The flusher tells its listeners of every log that is durable."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import directories
from tests.support.batches import fill
from tests.support.directories import ORDERS, opened
from tests.support.memory_peer import simulated
from tests.support.partitions import NAME, OWN, TOPIC_ID, append, image, settings
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.core.telemetry import Telemetry
from tidemill.replication.flushing.flusher import Flusher
from tidemill.replication.partition import Partition
from tidemill.storage.directory.flush_round import DirtyLogs
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.manual_clock import SimClock
from tidemill.testing.sim.disk import SimDisk

LONG_S = 60.0
OTHER = TopicPartition(ORDERS.topic, ORDERS.partition + 1)


class FlushedPartition:
    """A partition with flush=group on a log in a directory, and its flusher."""

    def __init__(self):
        disk = SimDisk()
        disk.make_directories("/d")
        self.log = FilePartitionLog.create(disk, FileCache(64), "/d/t-0", LogConfig())
        dirty = DirtyLogs(on_failure=lambda fault: None)
        clock = SimClock(asyncio.get_running_loop().time)
        self.flusher = Flusher(disk, dirty, clock=clock, telemetry=Telemetry())
        self.partition = Partition(
            NAME,
            TOPIC_ID,
            self.log,
            broker_id=OWN,
            settings=settings(),
            flushes=self.flusher,
            high_watermark=0,
        )
        self.flusher.subscribe(lambda _log: self.partition.maybe_advance_marks())
        self.partition.become_leader(image(replicas=(OWN,)), now=0.0)

    async def run_flusher(self):
        task = asyncio.ensure_future(self.flusher.run())
        await asyncio.sleep(LONG_S)
        task.cancel()


@simulated
async def test_an_acknowledgement_leaves_when_its_batch_is_durable():
    flushed, codes = FlushedPartition(), []
    flushed.partition.as_leader.wait_acknowledged(
        append(flushed.partition, 3).next_offset, codes.append
    )
    assert codes == []
    await flushed.run_flusher()
    assert codes == [ErrorCode.NONE]


@simulated
async def test_an_acknowledgement_leaves_when_DeleteRecords_overtakes_the_flush():
    flushed, codes = FlushedPartition(), []
    flushed.partition.as_leader.wait_acknowledged(
        append(flushed.partition, 3).next_offset, codes.append
    )
    flushed.log.advance_start(flushed.partition.high_watermark)
    await flushed.run_flusher()
    assert codes == [ErrorCode.NONE]


@pytest.mark.parametrize("wait_s", [0.0, 0.5, 1.5])
def test_rounds_go_on_when_a_log_is_deleted_that_is_to_be_flushed(wait_s):
    @simulated
    async def story():
        disk = SimDisk(run_delay_s=lambda: 2.0)
        directory = opened(disk)
        log = directory.create_log(ORDERS, directories.TOPIC_ID, LogConfig())
        other = directory.create_log(OTHER, directories.TOPIC_ID, LogConfig())
        clock = SimClock(asyncio.get_running_loop().time)
        flusher = Flusher(disk, directory.dirty, clock=clock, telemetry=Telemetry())
        running = asyncio.ensure_future(flusher.run())
        fill(log, 1)
        flusher.request(log)
        await asyncio.sleep(wait_s)
        directory.delete_log(ORDERS)
        directory.settle_removals()
        fill(other, 1)
        flusher.request(other)
        await asyncio.sleep(LONG_S)
        running.cancel()
        assert directory.failure is None
        assert other.flushed_offset == other.log_end_offset

    story()
