"""S11: what one callback of the event loop may do to the disk, over all APIs and all loops.

While a callback runs, no other client is served. So each may use a little of the disk (a write into
the page cache, a read of bytes that are in memory), as much as takes about ten milliseconds, and
nothing that waits for the medium. Everything else goes through `Disk.run`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.loop.api_drives import SERVING
from tests.loop.background_drives import BACKGROUND
from tests.loop.callback_ledger import CallbackLedger, DiskUse
from tests.loop.coordinator_drives import COORDINATORS
from tests.loop.counted_disk import CountedDisk
from tests.loop.hold_drives import HOLDING
from tests.loop.stage import staged, world_of
from tidemill.core.limits import MIB
from tidemill.server.handlers import HANDLERS
from tidemill.testing.sim.disk import SimDisk
from tidemill.testing.sim.loop import SimLoop

BUDGET = {
    DiskUse.SYNC: 0,
    DiskUse.CUT: 0,
    DiskUse.LIST: 0,
    DiskUse.NAME: 4,  # compaction puts a segment and its two indexes in place
    DiskUse.MAKE: 256,  # a slice of Produce may open a new segment in each of its partitions
    DiskUse.OPEN: 100,
    DiskUse.LOOK: 900,  # after a start, a slice of Produce looks for three index files a partition
    DiskUse.READ: 1_000,
    DiskUse.READ_BYTES: 32 * MIB,
    DiskUse.WRITE: 1_000,
    DiskUse.WRITE_BYTES: 32 * MIB,
}

DRIVES = {**SERVING, **COORDINATORS}


def test_every_api_is_asked_for_something():
    driven = {key for _, keys in DRIVES.values() for key in keys}
    assert driven == {handler.api_key for handler in HANDLERS}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRIVES)
def test_S11_no_callback_of_an_api_goes_over_its_budget_of_the_disk(name):
    drive, _ = DRIVES[name]
    ledger = CallbackLedger(BUDGET)

    async def main(world):
        await world.start_broker(0)
        async with staged(world) as stage:
            await drive(stage)
            await stage.settle()
        await world.stop_broker(0)

    with ledger.watching():
        world_of(ledger).run(main)
    check(name, ledger)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*BACKGROUND, *HOLDING])
def test_S11_no_callback_of_a_background_loop_goes_over_its_budget_of_the_disk(name):
    ledger = CallbackLedger(BUDGET)
    with ledger.watching():
        world_of(ledger, log_retention_check_interval_ms=30_000).run(
            {**BACKGROUND, **HOLDING}[name]
        )
    check(name, ledger)


def check(name, ledger):
    assert ledger.calls_in_threads, "nothing was counted"
    first = {offence.use: str(offence) for offence in reversed(ledger.offences)}
    assert not first, f"{name}:\n\n" + "\n".join(first.values())


# --- the ledger itself ---------------------------------------------------------------------------


def on_a_simulated_loop(work):
    loop = SimLoop()
    try:
        return loop.run(work)
    finally:
        loop.close()


@pytest.fixture(params=["real", "simulated"])
def run(request, run):
    """Both kinds of loops are watched."""
    return run if request.param == "real" else on_a_simulated_loop


def offences_of(run, scenario):
    """What a scenario on a counted disk does wrong, if one sync per callback is allowed."""
    ledger = CallbackLedger({**BUDGET, DiskUse.SYNC: 1})
    disk = CountedDisk(SimDisk(), ledger)
    disk.make_directories("/d")

    async def main():
        await asyncio.sleep(0)  # the callback that made the disk ends
        await scenario(disk)

    with ledger.watching():
        run(main())
    return ledger.offences


def sync_twice(disk):
    disk.sync_directory("/d")
    disk.sync_directory("/d")


def test_a_callback_over_its_budget_is_reported_with_its_stack(run):
    async def scenario(disk):
        sync_twice(disk)

    (offence,) = offences_of(run, scenario)
    assert (offence.use, offence.amount) == (DiskUse.SYNC, 2)
    assert "sync_twice" in offence.stack


def test_the_budget_counts_from_nothing_in_every_callback(run):
    async def scenario(disk):
        disk.sync_directory("/d")
        await asyncio.sleep(0)
        disk.sync_directory("/d")

    assert offences_of(run, scenario) == []


def test_what_runs_in_a_thread_costs_the_loop_nothing(run):
    async def scenario(disk):
        await disk.run(lambda: sync_twice(disk))

    assert offences_of(run, scenario) == []
