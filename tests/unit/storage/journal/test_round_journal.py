"""Which rounds go to the journal, and when its files are filled again."""

from __future__ import annotations

import pytest

from tests.support.journaled_directory import JournaledDirectory
from tidemill.core.errors import DiskFull, InvariantViolation, KafkaError, StorageFault
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import JOURNAL_TAIL_BYTES_MAX, KIB, MIB
from tidemill.storage.journal.round_journal import JournalLimits
from tidemill.storage.log.interface import LogConfig
from tidemill.testing.sim.disk import SimDisk


def test_rounds_sync_their_files_until_the_journal_is_made(journaled):
    logs = journaled.create(3)
    assert not journaled.flush(logs)
    assert journaled.journal.is_wanted
    journaled.make_journal()
    assert journaled.flush(logs)
    assert not journaled.journal.is_wanted


def test_a_round_of_the_journal_syncs_one_file(journaled):
    logs = journaled.create(20)
    journaled.make_journal()
    syncs: list[str] = []
    journaled.disk.on_call = lambda _disk, call, path: (
        syncs.append(path) if call == "sync" else None
    )
    assert journaled.flush(logs)
    assert syncs == ["/data/round-journal.0"]
    assert all(log.flushed_offset == log.log_end_offset for log in logs)


def test_a_round_of_one_log_syncs_its_file(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    assert not journaled.flush(logs[:1])


def test_long_tails_and_new_segments_are_synced_beside_the_block(journaled):
    logs = journaled.create(4)
    journaled.make_journal()
    journaled.append(logs[0], JOURNAL_TAIL_BYTES_MAX)
    logs[1].set_config(LogConfig(segment_bytes=100))  # the next append starts a segment
    assert journaled.flush(logs)
    assert [log.progress.synced_offset == log.log_end_offset for log in logs] == [
        True,
        True,
        False,
        False,
    ]
    assert all(log.flushed_offset == log.log_end_offset for log in logs)


def test_a_journal_of_no_bytes_is_never_made():
    journaled = JournaledDirectory(SimDisk(), JournalLimits(bytes_max=0))
    assert not journaled.flush(journaled.create(3))
    assert not journaled.journal.is_wanted


def test_a_full_file_is_settled_and_grows_while_the_other_one_fills(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    due: list[None] = []
    journaled.journal.on_due = lambda: due.append(None)
    while not due:
        assert journaled.flush(logs)
    assert journaled.journal.wants_settling(0)
    journaled.settle()
    assert journaled.disk.size("/data/round-journal.0") == 16_384
    assert journaled.flush(logs)
    assert not journaled.journal.wants_settling(0)


def test_both_files_together_stay_below_their_bound(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    for _ in range(400):
        journaled.flush(logs, size=300)
        if journaled.journal.wants_settling(0):
            journaled.settle()
    sizes = [journaled.disk.size(f"/data/round-journal.{number}") for number in (0, 1)]
    assert sum(sizes) == journaled.journal.limits.bytes_max


def test_bytes_are_settled_when_they_have_waited_long_enough(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    journaled.flush(logs, now_ms=5_000)
    assert not journaled.journal.wants_settling(5_999)
    assert journaled.journal.wants_settling(6_000)
    journaled.settle()
    assert [log.progress.synced_offset for log in logs] == [log.log_end_offset for log in logs]
    assert not journaled.journal.wants_settling(60_000)


def test_while_both_files_are_in_use_rounds_sync_their_files(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    journaled.flush(logs)
    journaled.journal.try_begin_settling()
    while journaled.flush(logs):
        pass
    assert all(log.progress.synced_offset == log.log_end_offset for log in logs)


def test_I1_a_file_is_not_freed_before_its_segments_are_synced(journaled):
    journaled.make_journal()
    journaled.flush(journaled.create(2))
    journaled.journal.try_begin_settling()
    with pytest.raises(InvariantViolation):
        journaled.journal.free()


def test_I10_a_log_with_bytes_in_the_journal_is_not_cut(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    journaled.flush(logs)
    with pytest.raises(InvariantViolation):
        logs[0].truncate_to(1)
    journaled.settle()
    logs[0].truncate_to(1)
    assert logs[0].log_end_offset == 1


def test_a_segment_with_bytes_in_the_journal_is_not_compacted(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    journaled.flush(logs)
    logs[0].set_config(LogConfig(segment_bytes=100))
    journaled.flush(logs[:1])
    journaled.flush(logs[:1])
    end = logs[0].flushed_offset
    assert not logs[0].compactable_segments(end)
    journaled.settle()
    assert logs[0].compactable_segments(end)


def test_I34_a_log_of_the_same_topic_comes_back_only_when_the_journal_has_nothing_of_it(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    journaled.flush(logs)
    partition, topic_id = (
        TopicPartition("t", 0),
        journaled.directory.topic_id(TopicPartition("t", 0)),
    )
    journaled.directory.delete_log(partition)
    with pytest.raises(KafkaError, match="still being deleted"):
        journaled.directory.create_log(partition, topic_id, LogConfig())
    journaled.settle()
    journaled.directory.create_log(partition, topic_id, LogConfig())


def test_a_checkpoint_promises_only_synced_segments(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    journaled.flush(logs)
    journaled.directory.write_checkpoint()
    points = [entry.recovery_point for entry in journaled.directory._checkpoint.entries.values()]
    assert points == [1, 1]
    assert [log.flushed_offset for log in logs] == [2, 2]


def test_a_clean_shutdown_syncs_what_only_the_journal_has(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    journaled.flush(logs)
    journaled.directory.close()
    again = JournaledDirectory(journaled.disk.restart())
    assert again.directory.started_clean
    assert again.log(0).log_end_offset == 2
    assert not again.disk.exists("/data/round-journal.0")


def test_R12_a_journal_that_finds_no_room_takes_none(journaled):
    journaled.disk.set_capacity(70_000)
    with pytest.raises(DiskFull):
        journaled.make_journal()
    assert journaled.disk.list_names("/data") == [".lock", "meta"]


def test_a_thread_that_makes_the_journal_touches_no_file_of_the_next_broker(journaled):
    """It may run on when the directory's lock is free again."""
    journaled.disk.open("/data/round-journal.1", create=True).pwrite([b"theirs"], 0)
    with pytest.raises(StorageFault):
        journaled.make_journal()
    assert journaled.disk.read_file("/data/round-journal.1") == b"theirs"


def test_a_journal_that_could_not_be_made_is_made_later(journaled):
    journaled.disk.fail("pwrite", "round-journal.1")
    with pytest.raises(StorageFault):
        journaled.make_journal()
    journaled.make_journal()
    assert journaled.flush(journaled.create(2)) or journaled.flush(
        list(journaled.directory.logs().values())
    )


def test_R12_a_file_that_finds_no_room_to_grow_stays_as_it_was(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    while not journaled.journal.wants_settling(0):
        journaled.flush(logs)
    journaled.disk.set_capacity(40_000)
    with pytest.raises(DiskFull):
        journaled.settle()
    journaled.journal.freed()
    assert journaled.disk.size("/data/round-journal.0") == 8_192
    assert journaled.flush(logs)


def test_a_file_that_cannot_grow_keeps_its_size(journaled):
    logs = journaled.create(2)
    journaled.make_journal()
    while not journaled.journal.wants_settling(0):
        journaled.flush(logs)
    assert journaled.journal.try_begin_settling()
    while (flush_round := journaled.directory.collect_settling()) is not None:
        flush_round.sync()
        flush_round.apply()
    journaled.journal.free().write_now()
    journaled.disk.fail("pwrite", "round-journal")
    with pytest.raises(StorageFault):
        journaled.journal.grow()
    journaled.journal.freed()
    assert journaled.flush(logs)


def test_logs_that_do_not_fit_into_one_block_are_synced_beside_it():
    limits = JournalLimits(bytes_max=64 * MIB, file_bytes_min=8 * MIB)
    journaled = JournaledDirectory(SimDisk(), limits)
    logs = journaled.create(200)
    journaled.make_journal()
    assert journaled.flush(logs, size=JOURNAL_TAIL_BYTES_MAX - 200)
    in_journal = [log for log in logs if log.progress.is_in_journal]
    assert 100 < len(in_journal) < 200
    assert all(log.flushed_offset == log.log_end_offset for log in logs)


@pytest.mark.parametrize(("configured", "used"), [(0, 0), (1_000, 2 * MIB), (8 * MIB, 8 * MIB)])
def test_a_journal_has_a_useful_size_or_none(configured, used):
    assert JournalLimits.of_bytes(configured).bytes_max == used


def test_a_small_journal_is_not_settled_after_every_large_round():
    limits = JournalLimits(bytes_max=256 * KIB, file_bytes_min=128 * KIB)
    journaled = JournaledDirectory(SimDisk(), limits)
    logs = journaled.create(60)
    journaled.make_journal()
    assert journaled.flush(logs, size=10_000)
    assert sum(log.progress.is_in_journal for log in logs) < 20
