"""Scanning segment bytes: what is valid, where the scan stops, what follows the damage."""

from __future__ import annotations

import pytest

from tidemill.storage.files.disk import DiskFile
from tidemill.storage.recovery.checked_scan import CheckedScan, try_find_batch_after
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.records import Record, build_batch


def batch(base_offset: int, *, records: int = 1, leader_epoch: int = 0, size: int = 40) -> bytes:
    values = [Record(b"%d" % index * size) for index in range(records)]
    return bytes(build_batch(values, base_offset=base_offset, leader_epoch=leader_epoch))


def file_of(data: bytes) -> DiskFile:
    file = SimDisk().open("/a", create=True)
    file.pwrite([data], 0)
    return file


def scan_of(data: bytes, *, next_offset: int = 0) -> tuple[CheckedScan, list[int]]:
    scan = CheckedScan(file_of(data), position=0, end=len(data), next_offset=next_offset)
    return scan, [found.header.base_offset for found in scan]


def test_valid_batches_are_walked_to_the_end():
    data = batch(0, records=3) + batch(3) + batch(4, records=2)
    scan, offsets = scan_of(data)
    assert offsets == [0, 3, 4]
    assert (scan.position, scan.next_offset, scan.damage) == (len(data), 6, None)


def test_a_scan_in_several_reads_finds_the_same():
    data = b"".join(batch(offset, size=300_000) for offset in range(8)) + batch(8, size=5_000_000)
    scan, offsets = scan_of(data)
    assert offsets == list(range(9))
    assert scan.damage is None


@pytest.mark.parametrize("cut", [1, 17, 60, 61, 80])
def test_a_batch_that_is_cut_short_ends_the_scan_before_it(cut):
    whole = batch(0)
    scan, offsets = scan_of(whole + batch(1)[:cut])
    assert offsets == [0]
    assert scan.position == len(whole)
    assert scan.damage is not None


def test_F20_every_flipped_bit_after_the_leader_epoch_is_detected():
    data = batch(0)
    for position in range(16, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        scan, offsets = scan_of(bytes(damaged))
        assert offsets == [], position
        assert scan.damage is not None


def test_an_offset_that_does_not_follow_ends_the_scan():
    scan, offsets = scan_of(batch(0, records=5) + batch(4))
    assert offsets == [0]
    assert scan.damage == "offset 4 where 5 is the next"


def test_a_gap_in_the_offsets_is_allowed():
    assert scan_of(batch(0) + batch(7))[1] == [0, 7]


def test_a_leader_epoch_that_falls_ends_the_scan():
    scan, offsets = scan_of(batch(0, leader_epoch=5) + batch(1, leader_epoch=4))
    assert offsets == [0]
    assert scan.damage == "leader epoch 4 after 5"


def test_zeros_are_not_a_batch():
    scan, offsets = scan_of(bytes(4096))
    assert offsets == []
    assert scan.damage is not None


def test_a_batch_after_a_hole_is_found():
    hole = bytes(1000) + b"\x02" * 500
    data = batch(0) + hole + batch(9)
    found = try_find_batch_after(
        file_of(data), position=len(batch(0)), end=len(data), next_offset=1
    )
    assert found is not None
    assert (found.position, found.header.base_offset) == (len(batch(0)) + len(hole), 9)


def test_a_batch_with_an_earlier_offset_does_not_count_after_a_hole():
    data = bytes(100) + batch(3)
    assert try_find_batch_after(file_of(data), position=0, end=len(data), next_offset=4) is None


def test_a_damaged_batch_after_a_hole_does_not_count():
    data = bytearray(bytes(100) + batch(3))
    data[-1] ^= 1
    assert (
        try_find_batch_after(file_of(bytes(data)), position=0, end=len(data), next_offset=0) is None
    )


def test_a_scan_can_continue_after_the_damage():
    damaged = bytearray(batch(1))
    damaged[70] ^= 1
    data = batch(0) + bytes(damaged) + batch(2) + batch(3)
    scan, offsets = scan_of(data)
    assert offsets == [0]
    found = try_find_batch_after(
        file_of(data), position=scan.position, end=len(data), next_offset=scan.next_offset
    )
    assert found is not None
    scan.skip_to(found)
    assert [later.header.base_offset for later in scan] == [2, 3]
