"""A whole broker on a disk whose threads are stuck: no kind of work holds up another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loop.one_broker import serving
from tests.support.blocked_threads import BlockedThreads
from tidemill.client.admin.topic_admin import Admin
from tidemill.client.producing.producer import Producer
from tidemill.core.clock import SystemClock
from tidemill.core.limits import DISK_BACKGROUND_THREADS, DISK_READ_THREADS
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.files.disk_work import DiskWork

DURABLE = {"tidemill.flush": "group"}
"""acks=all is answered when a flush round has ended."""


@pytest.fixture
def disk() -> Iterator[OsDisk]:
    made = OsDisk()
    yield made
    made.close()


def test_S11_acks_all_is_answered_while_every_thread_but_those_for_flushes_is_stuck(
    run, disk, tmp_path
):
    async def scenario():
        async with serving(str(tmp_path), disk) as cluster:
            await Admin(cluster).create_topic("t", partitions=1, configs=DURABLE)
            reads = BlockedThreads(disk, DiskWork.READ)
            background = BlockedThreads(disk, DiskWork.BACKGROUND)
            await reads.block(DISK_READ_THREADS)
            await background.block(DISK_BACKGROUND_THREADS)
            async with Producer(cluster, SystemClock()) as producer:
                delivery = await producer.send("t", b"value", partition=0)
                offset = await delivery.offset()
            await reads.release()
            await background.release()
            return offset

    assert run(scenario()) == 0


def test_S11_offsets_are_found_by_time_while_background_work_is_stuck(run, disk, tmp_path):
    async def scenario():
        async with serving(str(tmp_path), disk) as cluster:
            admin = Admin(cluster)
            await admin.create_topic("t", partitions=1)
            async with Producer(cluster, SystemClock()) as producer:
                await (await producer.send("t", b"value", partition=0)).offset()
            background = BlockedThreads(disk, DiskWork.BACKGROUND)
            await background.block(DISK_BACKGROUND_THREADS)
            found = await admin.list_offsets("t", 1)
            await admin.create_topic("u", partitions=1)
            await admin.delete_records("t", {0: 1})
            await background.release()
            return found[0].offset

    assert run(scenario()) == 0
