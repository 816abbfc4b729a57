"""The loop that looks how much of the disk is free."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.coroutines import run
from tests.unit.client.virtual_time import run_virtually
from tidemill.core.config.broker_config import broker_config
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import DiskFull
from tidemill.core.limits import MIB
from tidemill.core.telemetry import Telemetry
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.room_watch import LOOK_GAP_S, LOOK_S, RoomWatch

DISK_BYTES = 1 << 30
RESERVE = 64 * MIB


class Place:
    """A directory on a disk of a gigabyte, and the watch over it."""

    def __init__(self) -> None:
        self.disk = SimDisk(capacity_bytes=DISK_BYTES)
        self.disk.make_directories("/data")
        self.room = DiskRoom("/data")
        self.telemetry = Telemetry()
        self.config = LiveConfig(broker_config())
        self.watch = RoomWatch(
            self.disk,
            "/data",
            self.room,
            clock=ManualClock(),
            telemetry=self.telemetry,
            config=self.config,
        )

    def look(self, free_bytes: int) -> bool:
        """Whether records are refused after a look that finds this."""
        self.set_free(free_bytes)
        run(self.watch.look())
        return self.room.is_refusing

    def set_free(self, free_bytes: int) -> None:
        space = self.disk.space("/data")
        self.disk.take_space(space.usable_bytes - free_bytes)


def test_R12_refusing_begins_and_ends_with_one_line_each(caplog):
    place = Place()
    with caplog.at_level(logging.WARNING):
        free_mib = [100, 60, 10, 65, 100, 90]
        found = [place.look(free * MIB) for free in free_mib]
    assert found == [False, True, True, True, False, False]
    assert [record.getMessage() for record in caplog.records] == [
        "No space left for records in /data: 60.0 MiB are free, and 64.0 MiB are kept for metadata "
        "and deletions. Delete topics or records, or give the disk more room",
        "/data: 100.0 MiB are free: records are accepted again",
    ]


def test_the_metrics_tell_what_the_last_look_found():
    place = Place()
    for free_mib, refuses in ((100, False), (10, True)):
        place.look(free_mib * MIB)
        assert place.telemetry.disk_free_bytes == free_mib * MIB
        assert place.telemetry.disk_refuses_records is refuses


def test_a_file_system_that_does_not_answer_has_no_reserve(caplog):
    place = Place()
    assert place.look(0)
    place.disk.fail("space", times=2)
    for _ in range(2):
        run(place.watch.look())
    place.room.take_for_records(MIB)
    assert not place.telemetry.disk_refuses_records
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "how much of the disk is free is unknown, there is no reserve: "
        "/data: space: input/output error (simulated)"
    ]


def refused_until(change) -> None:
    """Records are refused, and accepted by themselves a second after this change."""
    place = Place()
    place.set_free(10 * MIB)

    async def scenario() -> None:
        running = asyncio.create_task(place.watch.run())
        await asyncio.sleep(2 * LOOK_S)
        with pytest.raises(DiskFull):
            place.room.take_for_records(1)
        change(place)
        await asyncio.sleep(LOOK_S)
        place.room.take_for_records(1)
        running.cancel()

    run_virtually(scenario())


def test_R12_records_are_accepted_a_second_after_there_is_room_again():
    refused_until(lambda place: place.set_free(2 * RESERVE))


def test_R12_a_lower_reserve_holds_a_second_after_it_was_set():
    refused_until(
        lambda place: place.config.override(
            cluster={}, own={"tidemill.disk.reserve.bytes": str(MIB)}
        )
    )


def test_appends_make_looks_come_early_but_not_one_after_the_other():
    place = Place()
    place.set_free(2 * RESERVE)
    looks = 0

    async def scenario() -> None:
        nonlocal looks
        ask = place.disk.space

        def counted(path: str) -> object:
            nonlocal looks
            looks += 1
            return ask(path)

        place.disk.space = counted  # type: ignore[method-assign,assignment]
        running = asyncio.create_task(place.watch.run())
        for _ in range(100):
            place.room.on_due()
            await asyncio.sleep(LOOK_GAP_S / 10)
        running.cancel()

    run_virtually(scenario())
    assert 9 <= looks <= 11
