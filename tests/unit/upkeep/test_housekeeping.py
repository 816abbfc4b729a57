"""The background work of a data directory."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.directories import ORDERS, ORDERS_PATH, SMALL, TOPIC_ID, opened
from tests.support.partitions import OWN, Flushes
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.telemetry import Telemetry
from tidemill.replication.flusher import Flusher
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.recovery.cut_files import CUT_FILE_MS_MAX
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.housekeeping import Housekeeping

CUT = f"{ORDERS_PATH}/{0:020d}.log.cut-3"
TURNS = 20


@pytest.mark.parametrize(
    ("age_ms", "stays"), [(CUT_FILE_MS_MAX, True), (CUT_FILE_MS_MAX + 1, False)]
)
def test_a_retention_pass_deletes_the_side_files_of_old_recoveries(run, age_ms, stays):
    disk = SimDisk()
    directory = opened(disk)
    directory.create_log(ORDERS, TOPIC_ID, SMALL)
    disk.open(CUT, create=True)
    clock = ManualClock(wall_ms=age_ms)

    async def one_pass() -> None:
        housekeeping = Housekeeping(
            disk,
            directory,
            ReplicaManager(OWN, directory, Flushes(), clock=clock),
            clock=clock,
            flusher=Flusher(
                disk,
                directory.dirty,
                clock=clock,
                telemetry=Telemetry(),
            ),
            config=LiveConfig(BrokerConfig(log_retention_check_interval_ms=0)),
        )
        running = asyncio.create_task(housekeeping.run_retention())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        running.cancel()

    run(one_pass())
    assert disk.exists(CUT) == stays
