"""A start after a crash gives the segments what only the journal has."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest

from tests.support.journaled_directory import JournaledDirectory
from tidemill.core.errors import StorageFault
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.directory_meta import DirectoryMeta
from tidemill.storage.directory.directory_start import topic_id_of
from tidemill.storage.journal import journal_block
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


def test_a_disk_that_fails_at_the_end_of_the_replay_keeps_the_journal(filled):
    disk = filled.disk.restart()
    disk.fail("unlink", "round-journal")
    with pytest.raises(StorageFault):
        JournaledDirectory(disk)
    assert disk.exists(FILES[0])
    assert ends(JournaledDirectory(disk)) == [3, 3, 3]


def test_I17_damage_in_the_first_block_is_reported_and_the_others_count(filled):
    filled.disk.flip_bit(FILES[0], 300)
    after = JournaledDirectory(filled.disk.restart())
    replayed = after.directory.report.replayed
    assert (replayed.entries, replayed.lost_blocks) == (3, 1)


def test_I17_a_first_sector_that_is_no_head_is_reported(filled):
    filled.disk.flip_bit(FILES[0], 4)
    after = JournaledDirectory(filled.disk.restart())
    assert after.directory.report.replayed.lost_blocks == 1


def test_I1_a_log_that_lost_its_topic_id_gets_its_bytes(filled):
    filled.directory.write_checkpoint()
    filled.flush(list(filled.directory.logs().values()))
    filled.disk.flip_bit("/data/t-0/partition", 5)
    after = filled.crash()
    assert ends(after) == [4, 4, 4]


def test_I1_a_log_that_cannot_be_read_keeps_its_bytes_for_the_next_start(filled):
    disk = filled.disk.crash(SeededRng(3))
    disk.fail("pread", "t-1/0", times=1_000)
    after = JournaledDirectory(disk)
    assert sorted(map(str, after.directory.logs())) == ["t-0", "t-2"]
    assert sorted(map(str, after.directory.report.failed)) == ["t-1"]
    assert not any(map(disk.exists, FILES))
    again = JournaledDirectory(disk.crash(SeededRng(4)))
    assert ends(again) == [3, 3, 3]
    assert not again.disk.exists("/data/round-journal.kept")


def test_a_clean_shutdown_leaves_no_journal(filled):
    filled.directory.close()
    assert not any(map(filled.disk.restart().exists, FILES))


def test_a_journal_beside_a_clean_shutdown_of_an_older_version_is_not_replayed(filled):
    old_journal = filled.disk.read_file(FILES[0])
    filled.directory.close()
    disk = filled.disk.restart()
    disk.write_file_atomically(FILES[0], old_journal)
    after = JournaledDirectory(disk)
    assert after.directory.started_clean
    assert after.directory.report.replayed.entries == 0
    assert not disk.exists(FILES[0])


def test_bytes_that_look_like_blocks_are_not_checked_one_by_one(filled, monkeypatch):
    checked: list[int] = []
    monkeypatch.setattr(journal_block.zlib, "crc32", lambda data: checked.append(len(data)) or 0)
    forged = (b"TMJ1" + bytes(508)) * 100
    filled.disk.overwrite(FILES[0], 2_048 + 4, forged)
    replay_journal(filled.disk, "/data", _id(filled), _topic_of(filled))
    assert len(checked) <= 2


def _id(journaled: JournaledDirectory) -> UUID:
    meta: DirectoryMeta = journaled.directory.meta
    return meta.directory_id


def _topic_of(journaled: JournaledDirectory):
    return partial(topic_id_of, journaled.disk, "/data", journaled.directory._checkpoint)
