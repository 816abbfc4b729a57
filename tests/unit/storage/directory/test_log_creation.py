"""Many new logs at once: what they cost, what is durable when, and what a fault leaves."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.batches import fill
from tests.support.directories import ROOT, SMALL, TOPIC_ID, flushed, opened
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError, StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.checkpoint import CHECKPOINT_NAMES
from tidemill.storage.directory.log_creation import LogCreation, WantedLog
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.testing.sim.disk import SimDisk

OTHER_ID = TopicId(UUID(int=8))
PARTITIONS = [TopicPartition("t", number) for number in range(5)]


def begun(directory: LogDirectory, topic_id: TopicId = TOPIC_ID) -> LogCreation:
    directory.free_names(PARTITIONS)
    directory.settle_removals()
    return directory.begin_creation(
        WantedLog(partition, topic_id, SMALL) for partition in PARTITIONS
    )


def created(directory: LogDirectory, topic_id: TopicId = TOPIC_ID) -> LogCreation:
    creation = begun(directory, topic_id)
    creation.make()
    directory.adopt(creation)
    return creation


def test_the_data_directory_is_synced_once_for_all_new_logs():
    calls: list[tuple[str, str]] = []
    disk = SimDisk()
    directory = opened(disk)
    disk.on_call = lambda _disk, call, path: calls.append((call, path))
    created(directory)
    assert calls.count(("sync_directory", ROOT)) == 1
    assert calls[-1] == ("sync_directory", ROOT)


def test_nothing_is_synced_before_all_names_are_made():
    calls: list[str] = []
    disk = SimDisk()
    directory = opened(disk)
    disk.on_call = lambda _disk, call, _path: calls.append(call)
    created(directory)
    last_name = max(at for at, call in enumerate(calls) if call == "create")
    assert "sync" not in calls[:last_name]
    assert calls.count("sync") == len(PARTITIONS)


def test_no_log_is_served_before_it_is_adopted():
    directory = opened(SimDisk())
    creation = begun(directory)
    creation.make()
    assert directory.logs() == {}
    directory.adopt(creation)
    assert list(directory.logs()) == PARTITIONS


@pytest.mark.parametrize("seed", range(5))
def test_adopted_logs_survive_a_crash(seed):
    disk = SimDisk()
    created(opened(disk))
    again = opened(disk.crash(SeededRng(seed)))
    assert sorted(again.logs()) == PARTITIONS
    assert {again.topic_id(partition) for partition in PARTITIONS} == {TOPIC_ID}


def test_I34_files_in_the_way_are_put_aside_and_purged_later():
    disk = SimDisk()
    directory = opened(disk)
    created(directory)
    fill(directory.logs()[PARTITIONS[0]], 3)
    flushed(directory, PARTITIONS[0])
    creation = created(directory, OTHER_ID)
    assert creation.made[PARTITIONS[0]].log_end_offset == 0
    while not directory.purge_slice(100):
        pass
    assert not [name for name in disk.list_names(ROOT) if name.endswith(".deleted")]


def test_a_fault_of_one_log_does_not_affect_the_others():
    disk = SimDisk()
    directory = opened(disk)
    disk.fail("sync", "t-2/partition")
    creation = created(directory)
    assert list(creation.failed) == [PARTITIONS[2]]
    assert PARTITIONS[2] not in directory.logs()
    assert len(directory.logs()) == 4


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("create", "t-2/0"),
        ("create", "t-2/partition"),
        ("sync_directory", "t-2"),
        ("pwrite", "t-2"),
    ],
)
def test_a_log_that_could_not_be_made_leaves_nothing_behind(call, part):
    disk = SimDisk()
    directory = opened(disk)
    disk.fail(call, part)
    created(directory)
    assert not disk.exists(f"{ROOT}/{PARTITIONS[2]}")
    assert directory.create_log(PARTITIONS[2], TOPIC_ID, SMALL).log_end_offset == 0


def test_if_the_names_do_not_become_durable_no_log_counts():
    disk = SimDisk()
    directory = opened(disk)
    creation = begun(directory)
    for _ in PARTITIONS:
        disk.fail("sync_directory", ROOT, times=len(PARTITIONS) + 1)
    creation.make()
    assert creation.made == {}
    assert list(creation.failed) == PARTITIONS


def test_R12_a_full_disk_refuses_new_logs_and_takes_nothing_offline():
    disk = SimDisk(capacity_bytes=250)
    directory = opened(disk)
    creation = created(directory)
    assert any(isinstance(fault, DiskFull) for fault in creation.failed.values())
    assert directory.failure is None


def test_a_directory_that_failed_meanwhile_serves_none_of_them():
    directory = opened(SimDisk())
    creation = begun(directory)
    creation.make()
    directory.fail(StorageFault("EIO"))
    with pytest.raises(KafkaError) as refused:
        directory.adopt(creation)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert directory.logs() == {}


class PowerLost(Exception):
    """The machine stops in the middle of a disk call."""


def left(disk: SimDisk) -> LogDirectory:
    """A directory whose checkpoint names the logs of replicas that have left."""
    directory = opened(disk)
    created(directory)
    for partition in PARTITIONS:
        fill(directory.logs()[partition], 3)
    flushed(directory, *PARTITIONS)
    directory.write_checkpoint()
    directory.free_names(PARTITIONS)
    directory.settle_removals()
    while not directory.purge_slice(100):
        pass
    return directory


def replaced(disk: SimDisk, call_max: int) -> bool:
    """A replica leaves and returns, with the same topic; whether power held for so many calls."""
    directory = left(disk)
    calls = 0

    def count(_number: int, _call: str, _path: str) -> None:
        nonlocal calls
        calls += 1
        if calls > call_max:
            raise PowerLost

    disk.on_call = count
    try:
        created(directory)
    except PowerLost:
        return False
    finally:
        disk.on_call = None
    return True


@pytest.mark.parametrize("seed", range(3))
def test_I14_the_checkpoint_of_a_replica_that_left_does_not_apply_to_the_one_that_returned(seed):
    has_ended, call_max = False, 0
    while not has_ended:
        disk = SimDisk()
        has_ended = replaced(disk, call_max)
        again = opened(disk.crash(SeededRng(seed)), seed=4)
        found = {log.log_end_offset: log.log_start_offset for log in again.logs().values()}
        assert found in ({}, {0: 0}), f"power lost at call {call_max}"
        assert not any(one.damage for one in again.report.partitions.values())
        call_max += 1
    assert len(again.logs()) == len(PARTITIONS)


@pytest.mark.parametrize("refused", range(4))
@pytest.mark.parametrize("call", ["pwrite", "rename", "sync_directory"])
def test_I14_nor_does_one_that_stayed_because_newer_ones_could_not_be_written(refused, call):
    disk = SimDisk()
    directory = left(disk)
    for _ in range(refused):
        disk.fail(call, ROOT if call == "sync_directory" else "checkpoint")
        with pytest.raises(StorageFault):
            directory.write_checkpoint()
    created(directory)
    again = opened(disk.crash(SeededRng(1)), seed=4)
    assert {log.log_end_offset for log in again.logs().values()} == {0}
    assert not any(one.damage for one in again.report.partitions.values())


def ends_without(disk: SimDisk, name: str) -> set[int]:
    """Where the logs end at a start that finds this generation of the checkpoint damaged."""
    left_over = disk.crash(SeededRng(1))
    left_over.flip_bit(f"{ROOT}/{name}", 20)
    again = opened(left_over, seed=4)
    assert not any(one.damage for one in again.report.partitions.values())
    return {log.log_end_offset for log in again.logs().values()}


def test_I14_nor_does_the_older_one_that_a_start_has_found():
    disk = SimDisk()
    left(disk).write_checkpoint()
    disk = disk.crash(SeededRng(1))
    created(opened(disk, seed=2))
    assert ends_without(disk, CHECKPOINT_NAMES[2 % 2]) == {0}


@pytest.mark.parametrize("call", ["pwrite", "rename", "sync_directory"])
def test_I14_nor_does_the_older_one_that_a_refused_one_should_have_replaced(call):
    disk = SimDisk()
    directory = left(disk)
    directory.write_checkpoint()
    disk.fail(call, ROOT if call == "sync_directory" else "checkpoint")
    with pytest.raises(StorageFault):
        directory.write_checkpoint()
    directory.write_checkpoint()
    created(directory)
    assert ends_without(disk, CHECKPOINT_NAMES[4 % 2]) == {0}
