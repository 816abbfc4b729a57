"""When a segment is given up that no replica has whole, and whose segments a log takes over."""

from __future__ import annotations

from tests.support.batches import fill
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.mend_progress import DAMAGED_EVERYWHERE_TRIES_MAX, MendProgress


def damaged_log() -> FilePartitionLog:
    disk = SimDisk()
    log = FilePartitionLog.create(disk, FileCache(disk), "/d-0", LogConfig(segment_bytes=200))
    fill(log, 10)
    log.damage.note(DamagedRange(0, log.segments.active.base_offset))
    return log


def segments() -> list[Segment]:
    return list(damaged_log().segments)


def lost_after(progress: MendProgress, segment: Segment) -> int:
    """How many answers more it takes."""
    answers = range(1, 2 * DAMAGED_EVERYWHERE_TRIES_MAX)
    return next(one for one in answers if progress.is_lost(segment, lack_it_all=True))


def test_a_segment_is_lost_when_all_have_said_ten_times_in_a_row_that_they_lack_it():
    progress, segment = MendProgress(), segments()[0]
    assert lost_after(progress, segment) == 10


def test_one_answer_of_another_kind_begins_anew():
    progress, segment = MendProgress(), segments()[0]
    for _ in range(9):
        assert not progress.is_lost(segment, lack_it_all=True)
    assert not progress.is_lost(segment, lack_it_all=False)
    assert lost_after(progress, segment) == 10


def test_what_is_said_of_one_segment_does_not_count_for_another():
    progress, (first, second, *_) = MendProgress(), segments()
    for _ in range(9):
        assert not progress.is_lost(first, lack_it_all=True)
        assert not progress.is_lost(second, lack_it_all=False)
    assert progress.is_lost(first, lack_it_all=True)
    assert lost_after(progress, second) == 10


def test_a_compacted_log_goes_on_with_the_replica_that_it_began_with():
    progress, log = MendProgress(), damaged_log()
    *_, last, _active = log.segments
    assert progress.chosen([1, 2]) == [1, 2]
    assert not progress.taken_over(log, last, 2)
    assert progress.chosen([1, 2]) == [2]
    assert last not in progress.segments(log)


def test_a_compacted_log_is_whole_when_all_closed_segments_are_the_other_replicas():
    progress, log = MendProgress(), damaged_log()
    *closed, _active = log.segments
    for segment in closed[1:]:
        assert not progress.taken_over(log, segment, 2)
        assert log.damage
    assert progress.taken_over(log, closed[0], 2)
    assert not log.damage


def test_a_segment_that_was_taken_over_is_looked_at_when_it_is_damaged_again():
    progress, log = MendProgress(), damaged_log()
    *closed, _active = log.segments
    for segment in reversed(closed):
        progress.taken_over(log, segment, 2)
    progress.doubtful.add(closed[1].base_offset)
    assert progress.segments(log) == [closed[1]]


def test_a_compacted_log_begins_anew_if_that_replica_is_gone():
    progress, log = MendProgress(), damaged_log()
    *_, last, _active = log.segments
    progress.taken_over(log, last, 2)
    assert progress.chosen([1, 3]) == [1, 3]
    assert last in progress.segments(log)
