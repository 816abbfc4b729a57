"""Producers that are silent for long are forgotten; live ones never are (I18)."""

from __future__ import annotations

import pytest

from tests.support.batches import append, batch, header
from tests.support.directories import (
    ORDERS,
    ORDERS_PATH,
    SMALL,
    TOPIC_ID,
    flushed,
    log_of,
    opened,
    stored,
)
from tidemill.core.ids import TopicPartition
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.state.producer_bound import ProducerLimits
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.producer_expiry import ProducerExpiry

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 100 * DAY_MS


class Machine:
    """A disk with a clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.disk = SimDisk(wall_ms=lambda: self.now_ms)

    def opened(self, **limits: int) -> LogDirectory:
        return opened(self.disk, now_ms=self.now_ms, producers=ProducerLimits(**limits))

    def killed(self) -> None:
        self.disk = self.disk.restart()

    def append(self, log: FilePartitionLog, producer_id: int, *, timestamp_ms: int = 0) -> None:
        data = batch(log.log_end_offset, times=[timestamp_ms], producer=(producer_id, 0, 0))
        append(log, data, now_ms=self.now_ms)


def remembered(directory: LogDirectory, partition: TopicPartition = ORDERS) -> list[int]:
    return [producer.producer_id for producer in log_of(directory, partition).producers.active()]


def test_producers_expire_in_slices_of_logs_and_of_entries():
    machine = Machine()
    directory = machine.opened()
    names = [TopicPartition("t", number) for number in range(3)]
    for name in names:
        log = directory.create_log(name, TOPIC_ID, SMALL)
        for producer_id in range(4):
            machine.append(log, producer_id)
    expiry = ProducerExpiry(directory)
    slices = []
    while not slices or slices[-1] is False:
        slices.append(expiry.run_slice(START_MS + DAY_MS, logs_max=2, entries_max=3))
    assert all(not remembered(directory, name) for name in names)
    assert len(slices) >= 4
    assert expiry.producers_forgotten == 12


def test_a_producer_lives_for_the_whole_expiration_after_its_last_append():
    machine = Machine()
    directory = machine.opened(expiration_ms=HOUR_MS)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    machine.append(log, 5)
    expiry = ProducerExpiry(directory)
    assert expiry.run_slice(START_MS + HOUR_MS - 1, logs_max=10, entries_max=10)
    assert remembered(directory) == [5]
    expiry.run_slice(START_MS + HOUR_MS, logs_max=10, entries_max=10)
    assert remembered(directory) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_forgets_the_producers_that_expired_meanwhile(is_clean):
    machine = Machine()
    directory = machine.opened()
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    machine.append(log, 5)
    machine.now_ms += DAY_MS // 2
    machine.append(log, 6)
    stored(directory)
    if is_clean:
        directory.close()
    else:
        machine.killed()
    machine.now_ms += DAY_MS // 2
    assert remembered(machine.opened()) == [6]


@pytest.mark.parametrize("timestamp_ms", [0, START_MS, START_MS + 50 * DAY_MS])
def test_I18_a_retry_is_recognised_without_a_snapshot_whatever_timestamps_its_records_have(
    timestamp_ms,
):
    machine = Machine()
    directory = machine.opened()
    machine.append(directory.create_log(ORDERS, TOPIC_ID, SMALL), 5, timestamp_ms=timestamp_ms)
    machine.now_ms += DAY_MS - 1
    machine.killed()
    again = machine.opened()
    ProducerExpiry(again).run_slice(machine.now_ms, logs_max=10, entries_max=10)
    repeated = log_of(again).producers.check(header(0, producer=(5, 0, 0)))
    assert repeated is not None
    assert repeated.base_offset == 0


def test_a_replay_does_not_give_the_producers_of_old_segments_a_second_life():
    machine = Machine()
    directory = machine.opened()
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    for producer_id in range(8):
        machine.append(log, producer_id)
        machine.now_ms += HOUR_MS
    flushed(directory)
    directory.write_checkpoint()
    machine.now_ms = START_MS + DAY_MS + 5 * HOUR_MS
    for _ in range(2):  # however often it is replayed
        machine.killed()
        for name in machine.disk.list_names(ORDERS_PATH):
            if name.endswith(".snapshot"):
                machine.disk.unlink(f"{ORDERS_PATH}/{name}")
        found = remembered(machine.opened())
        assert set(found) >= {6, 7}
        assert not {0, 1, 2} & set(found)


def test_I18_a_cut_keeps_the_times_of_the_producers_that_are_left():
    machine = Machine()
    directory = machine.opened()
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    machine.append(log, 5)
    machine.append(log, 6)
    directory.close()
    directory = machine.opened()
    log = log_of(directory)
    log.truncate_to(1)
    ProducerExpiry(directory).run_slice(START_MS + HOUR_MS, logs_max=10, entries_max=10)
    assert remembered(directory) == [5]
    assert log.producers.last_append_ms(5) == START_MS


def test_S38_the_bound_holds_over_all_logs_also_after_a_start():
    machine = Machine()
    directory = machine.opened(entries_max=5)
    names = [TopicPartition("t", number) for number in range(3)]
    for name in names:
        log = directory.create_log(name, TOPIC_ID, SMALL)
        for producer_id in range(3):
            machine.now_ms += 1
            machine.append(log, producer_id)
    assert [remembered(directory, name) for name in names] == [[], [1, 2], [0, 1, 2]]
    directory.close()
    directory = machine.opened(entries_max=4)
    assert sum(len(log.producers) for log in directory.logs().values()) == 4
    directory.delete_log(names[2])
    log = directory.create_log(names[2], TOPIC_ID, SMALL)
    for producer_id in range(3):
        machine.append(log, producer_id)
    assert remembered(directory, names[2]) == [0, 1, 2]
