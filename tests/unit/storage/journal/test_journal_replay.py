"""A start after a crash gives the segments what only the journal has."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.journaled_directory import JournaledDirectory
from tidemill.core.errors import StorageFault
from tidemill.storage.directory.directory_meta import DirectoryMeta
from tidemill.storage.journal.journal_replay import replay_journal

FILES = ("/data/round-journal.0", "/data/round-journal.1")


@pytest.fixture
def filled(journaled):
    """Three logs with three flushed records each, two of them in the journal only."""
    logs = journaled.create(3)
    journaled.make_journal()
    journaled.flush(logs)
    journaled.flush(logs)
    return journaled


def ends(journaled: JournaledDirectory) -> list[int]:
    return [log.log_end_offset for log in journaled.directory.logs().values()]


def test_I1_flushed_records_survive_a_power_loss(filled):
    after = filled.crash()
    assert ends(after) == [3, 3, 3]
    assert after.directory.report.replayed.entries == 6
    assert not after.directory.report.partitions


def test_the_journal_is_gone_after_its_replay(filled):
    after = filled.crash()
    assert not any(map(after.disk.exists, FILES))
    assert ends(after.crash()) == [3, 3, 3]


def test_bytes_that_the_page_cache_kept_are_not_written_again(filled):
    after = JournaledDirectory(filled.disk.restart())
    replayed = after.directory.report.replayed
    assert (replayed.entries, replayed.written_bytes) == (6, 0)
    assert ends(after.crash()) == [3, 3, 3]


def test_a_last_block_that_is_not_whole_was_not_acknowledged(filled):
    filled.disk.flip_bit(FILES[0], 1_100)  # in the second of two blocks
    replayed = replay_journal(filled.disk, "/data", _id(filled), _topic_of(filled))
    assert (replayed.entries, replayed.lost_blocks) == (3, 0)


def test_I17_a_damaged_block_is_reported_and_the_others_count(filled):
    logs = list(filled.directory.logs().values())
    filled.flush(logs)
    filled.flush(logs)
    filled.disk.flip_bit(FILES[0], 1_100)  # in the second of four blocks
    after = JournaledDirectory(filled.disk.restart())
    replayed = after.directory.report.replayed
    assert (replayed.entries, replayed.lost_blocks) == (9, 1)
    assert "damaged" in after.directory.report.lines()[0]


def test_the_journal_of_another_directory_is_ignored(filled):
    replayed = replay_journal(filled.disk, "/data", UUID(int=99), _topic_of(filled))
    assert replayed.entries == 0


def test_I34_entries_of_a_deleted_topic_are_skipped(filled):
    replayed = replay_journal(filled.disk, "/data", _id(filled), lambda _name: None)
    assert (replayed.entries, replayed.skipped) == (6, 6)


def test_entries_of_dropped_segments_are_skipped(filled):
    path = "/data/t-0/00000000000000000000.log"
    filled.disk.rename(path, path + ".deleted")
    replayed = replay_journal(filled.disk, "/data", _id(filled), _topic_of(filled))
    assert (replayed.entries, replayed.skipped) == (6, 2)


def test_a_disk_that_fails_during_the_replay_keeps_the_journal(filled):
    disk = filled.disk.restart()
    disk.fail("sync", ".log")
    with pytest.raises(StorageFault):
        JournaledDirectory(disk)
    assert disk.exists(FILES[0])
    assert ends(JournaledDirectory(disk)) == [3, 3, 3]


def _id(journaled: JournaledDirectory) -> UUID:
    meta: DirectoryMeta = journaled.directory.meta
    return meta.directory_id


def _topic_of(journaled: JournaledDirectory):
    return journaled.directory._topic_id_of
