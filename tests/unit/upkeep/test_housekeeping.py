"""The background work of a data directory."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.batches import append, batch
from tests.support.directories import ORDERS, ORDERS_PATH, SMALL, TOPIC_ID, opened
from tests.support.partitions import OWN, Flushes
from tidemill.core.telemetry import Telemetry
from tidemill.replication.flusher import Flusher
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.recovery.cut_files import CUT_FILE_MS_MAX
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.housekeeping import Housekeeping

CUT = f"{ORDERS_PATH}/{0:020d}.log.cut-3"
TURNS = 20
DAY_MS = 24 * 3600 * 1000


async def one_retention_pass(disk: SimDisk, directory: LogDirectory, clock: ManualClock) -> None:
    housekeeping = Housekeeping(
        disk,
        directory,
        ReplicaManager(OWN, directory, Flushes(), clock=clock),
        clock=clock,
        flusher=Flusher(disk, directory.dirty, clock=clock, telemetry=Telemetry()),
        retention_interval_s=0.0,
    )
    running = asyncio.create_task(housekeeping.run_retention())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    running.cancel()


@pytest.mark.parametrize(
    ("age_ms", "stays"), [(CUT_FILE_MS_MAX, True), (CUT_FILE_MS_MAX + 1, False)]
)
def test_a_retention_pass_deletes_the_side_files_of_old_recoveries(run, age_ms, stays):
    disk = SimDisk()
    directory = opened(disk)
    directory.create_log(ORDERS, TOPIC_ID, SMALL)
    disk.open(CUT, create=True)
    clock = ManualClock(wall_ms=age_ms)

    run(one_retention_pass(disk, directory, clock))
    assert disk.exists(CUT) == stays


@pytest.mark.parametrize(("idle_ms", "left"), [(DAY_MS - 1, 1), (DAY_MS, 0)])
def test_a_retention_pass_forgets_silent_producers(run, idle_ms, left):
    disk = SimDisk()
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    append(log, batch(0, producer=(5, 0, 0)), now_ms=1_000)
    run(one_retention_pass(disk, directory, ManualClock(wall_ms=1_000 + idle_ms)))
    assert len(log.producers) == left
