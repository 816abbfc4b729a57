from __future__ import annotations

import pytest

from tests.support.batches import NOW_MS, header
from tidemill.storage.state.producer_capture import ProducerCapture
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.testing.sim.disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/d")
    return disk


def states(producers: int) -> ProducerStates:
    found = ProducerStates()
    for pid in range(producers):
        found.update(header(pid, producer=(pid, 0, 0)), NOW_MS)
    return found


def write(disk: SimDisk, snapshots: ProducerSnapshots) -> None:
    """What a flush does."""
    offsets, obsolete = snapshots.pending_offsets(), snapshots.obsolete()
    for path, encode in snapshots.contents():
        disk.write_file_atomically(path, encode())
    for path in obsolete:
        disk.unlink(path)
    snapshots.written(offsets)


def names(disk: SimDisk) -> list[int]:
    return [int(name.removesuffix(".snapshot")) for name in disk.list_names("/d")]


def test_the_newest_snapshot_up_to_an_offset_is_found(disk):
    snapshots = ProducerSnapshots(disk, "/d")
    snapshots.take(states(1), 10)
    write(disk, snapshots)
    snapshots.take(states(2), 20)
    for offset, expected in ((9, None), (10, (1, 10)), (19, (1, 10)), (20, (2, 20)), (99, (2, 20))):
        found = snapshots.try_load_newest(offset)
        assert (found and (len(found[0]), found[1])) == expected


def test_R10_two_generations_are_kept(disk):
    snapshots = ProducerSnapshots(disk, "/d")
    for offset in (10, 20, 30, 40):
        snapshots.take(states(1), offset)
        write(disk, snapshots)
    assert names(disk) == [30, 40]
    assert snapshots.newest_offset == 40


def test_snapshots_that_wait_for_a_flush_are_bounded(disk):
    snapshots = ProducerSnapshots(disk, "/d")
    for offset in range(50):
        snapshots.take(states(1), offset)
    assert snapshots.pending_offsets() == [48, 49]


def test_R10_a_damaged_snapshot_is_replaced_by_the_one_before(disk):
    snapshots = ProducerSnapshots(disk, "/d")
    for offset in (10, 20):
        snapshots.take(states(1), offset)
        write(disk, snapshots)
    disk.flip_bit(f"/d/{20:020d}.snapshot", 30)
    later = ProducerSnapshots(disk, "/d", names(disk))
    found = later.try_load_newest(99)
    assert found is not None
    assert found[1] == 10


def test_a_snapshot_is_encoded_by_the_flush_that_writes_it(disk, monkeypatch):
    encoded = []
    encode = ProducerCapture.encode
    monkeypatch.setattr(
        ProducerCapture, "encode", lambda capture: encoded.append(1) or encode(capture)
    )
    snapshots = ProducerSnapshots(disk, "/d")
    snapshots.take(states(3), 10)
    contents = snapshots.contents()
    assert not encoded
    assert [ProducerStates.decode(make())[1] for _, make in contents] == [10]


def test_a_snapshot_under_a_wrong_name_is_not_trusted(disk):
    disk.write_file_atomically(f"/d/{20:020d}.snapshot", states(1).encode(10))
    assert ProducerSnapshots(disk, "/d", [20]).try_load_newest(99) is None


def test_a_cut_removes_later_snapshots(disk):
    snapshots = ProducerSnapshots(disk, "/d")
    snapshots.take(states(1), 10)
    snapshots.take(states(1), 20)
    write(disk, snapshots)
    snapshots.take(states(1), 30)
    snapshots.drop_after(10)
    assert names(disk) == [10]
    assert snapshots.pending_offsets() == []
    assert snapshots.newest_offset == 10


def test_without_a_snapshot_the_newest_offset_is_minus_one(disk):
    assert ProducerSnapshots(disk, "/d").newest_offset == -1
