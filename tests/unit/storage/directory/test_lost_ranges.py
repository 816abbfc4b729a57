"""Offsets that were given up, over restarts: lost ones stay so, others do not become so."""

from __future__ import annotations

import pytest

from tests.support.batches import append, batch, fill
from tests.support.directories import (
    ORDERS,
    ORDERS_PATH,
    SMALL,
    TOPIC_ID,
    flushed,
    log_of,
    opened,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.storage.state.log_damage import DamagedRange, store_damage
from tidemill.wire.records import empty_batch

LOST = DamagedRange(4, 6)


def given_up_on(disk, log) -> None:
    log.damage.give_up(LOST)
    store_damage(disk, ORDERS_PATH, log.damage.encode())


def test_I17_a_range_that_was_given_up_is_refused_after_a_restart(disk):
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    fill(log, LOST.start_offset)
    append(log, empty_batch(LOST.start_offset, LOST.end_offset, leader_epoch=0))
    append(log, batch(LOST.end_offset))
    given_up_on(disk, log)
    flushed(directory)
    again = log_of(opened(disk.restart()))
    with pytest.raises(KafkaError) as caught:
        again.read(5, max_bytes=100, end_offset=again.log_end_offset)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("offset", [0, 2, 4])
def test_I1_what_is_written_where_a_lost_range_was_cut_can_be_read_after_a_restart(disk, offset):
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    fill(log, 10)
    flushed(directory)
    given_up_on(disk, log)
    log.truncate_to(offset)
    fill(log, 10)
    flushed(directory)
    again = log_of(opened(disk.restart()))
    assert again.read(5, max_bytes=100, end_offset=again.log_end_offset).size_bytes
    assert not again.damage


@pytest.mark.parametrize("is_cut_by_recovery", [False, True])
def test_I1_a_note_about_what_was_cut_does_not_come_back_after_two_restarts(
    disk, is_cut_by_recovery
):
    directory = opened(disk)
    log = directory.create_log(ORDERS, TOPIC_ID, SMALL)
    fill(log, LOST.start_offset)
    flushed(directory)
    given_up_on(disk, log)
    if is_cut_by_recovery:  # a crash came before the batch without records
        disk = disk.restart()
        directory = opened(disk)
        log = log_of(directory)
    else:
        append(log, empty_batch(LOST.start_offset, LOST.end_offset, leader_epoch=0))
        log.truncate_to(LOST.start_offset)
    # Compaction leaves a batch without records, and one with some behind it.
    append(log, empty_batch(LOST.start_offset, LOST.start_offset + 1, leader_epoch=0))
    fill(log, 10)
    flushed(directory)
    again = log_of(opened(disk.restart()))
    assert not again.damage
    assert again.read(5, max_bytes=100, end_offset=again.log_end_offset).size_bytes
