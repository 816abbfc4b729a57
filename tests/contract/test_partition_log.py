"""The contract of PartitionLog: the file log and the memory log pass the same suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import transactions
from tests.support.batches import (
    NOW_MS,
    append,
    batch,
    data_of,
    drain,
    fill,
    flush,
    header,
    offsets_of,
    read,
)
from tidemill.core.errors import ErrorCode, InvariantViolation, KafkaError
from tidemill.storage.files.disk import OsDisk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig, PartitionLog, TimedOffset, end_of
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.wire import compression
from tidemill.wire.batch import CorruptBatch, iter_headers
from tidemill.wire.records import Record, build_batch

NewLog = Callable[..., PartitionLog]
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)


@pytest.fixture(params=["file", "memory"])
def new_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewLog]:
    made: list[PartitionLog] = []

    def make(config: LogConfig = SMALL, *, base_offset: int = 0) -> PartitionLog:
        log: PartitionLog
        if request.param == "file":
            disk = OsDisk()
            directory = str(tmp_path / f"log-{len(made)}")
            log = FilePartitionLog.create(
                disk, FileCache(disk), directory, config, base_offset=base_offset
            )
        else:
            log = MemoryPartitionLog(config, base_offset=base_offset)
        made.append(log)
        return log

    yield make
    for log in made:
        log.close()


@pytest.fixture
def log(new_log: NewLog) -> PartitionLog:
    return new_log()


# --- append and read ------------------------------------------------------------------------------


def test_a_new_log_is_empty_at_its_base_offset(new_log):
    log = new_log(base_offset=7)
    assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (7, 7, 7)
    assert log.size_bytes == 0
    assert read(log, 7) == b""
    assert log.take_flush_point() is None


def test_appended_batches_are_read_back_byte_for_byte(log):
    batches = [batch(0, 3), batch(3, 2)]
    append(log, *batches)
    assert log.log_end_offset == 5
    assert log.size_bytes == len(b"".join(batches))
    assert read(log, 0) == b"".join(batches)


def test_a_log_of_many_segments_is_read_from_end_to_end(log):
    written = fill(log, 40, records=2)
    assert drain(log) == b"".join(written)
    assert drain(log, max_bytes=200) == b"".join(written)
    assert drain(log, 31) == b"".join(written[15:])


def test_T31_an_offset_inside_a_batch_gets_that_batch(log):
    written = fill(log, 10, records=3)
    for offset in range(30):
        assert read(log, offset).startswith(written[offset // 3]), offset


def test_T31_the_first_batch_is_returned_whole_even_if_it_exceeds_the_limit(
    log,
):
    written = fill(log, 3, value=b"x" * 500)
    assert read(log, 1, max_bytes=10) == written[1]


def test_without_at_least_one_the_limit_holds_for_the_first_batch_too(log):
    fill(log, 3, value=b"x" * 500)
    assert read(log, 1, max_bytes=10, at_least_one=False) == b""


@pytest.mark.parametrize("max_bytes", [1, 80, 150, 250, 1_000, 100_000])
def test_T31_a_read_is_whole_batches_within_the_limit(new_log, max_bytes):
    log = new_log(LogConfig(index_interval_bytes=200))
    written = fill(log, 60)
    for offset in (0, 1, 17, 59):
        found = read(log, offset, max_bytes=max_bytes)
        count = len(offsets_of(found))
        assert found == b"".join(written[offset : offset + count])
        assert count == 1 or len(found) <= max_bytes


def test_T32_an_offset_outside_the_log_is_refused(new_log):
    log = new_log(base_offset=10)
    fill(log, 2)
    for offset in (-1, 9, 13):
        with pytest.raises(KafkaError) as refusal:
            log.read(offset, max_bytes=100, end_offset=12)
        assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(log, 12) == b""


def test_T32_no_batch_reaches_the_end_offset(log):
    written = fill(log, 10, records=3)
    for end_offset in range(31):
        whole = end_offset // 3
        found = b""
        offset = 0
        while offset < end_offset:
            part = read(log, offset, end_offset=end_offset)
            if not part:
                break
            found += part
            offset = offsets_of(part)[-1] + 1
        assert found == b"".join(written[:whole]), end_offset


def test_an_end_offset_past_the_log_is_the_end_of_the_log(log):
    written = fill(log, 2)
    assert read(log, 0, end_offset=99) == b"".join(written)
    assert read(log, 2, end_offset=99) == b""


def test_offsets_may_have_gaps(log):
    append(log, batch(0), batch(10, 2))
    append(log, batch(20))
    assert log.log_end_offset == 21
    assert offsets_of(read(log, 1)) == [10, 11, 20]
    assert offsets_of(read(log, 12)) == [20]


@pytest.mark.parametrize("late", [batch(4), batch(6, epoch=1)], ids=["offset", "epoch"])
def test_a_batch_out_of_order_is_refused_and_nothing_changes(log, late):
    append(log, batch(0, 5, epoch=2))
    with pytest.raises(InvariantViolation):
        append(log, batch(5, epoch=2), late)
    assert log.log_end_offset == 5
    assert len(offsets_of(read(log, 0))) == 5


def test_headers_that_do_not_describe_the_bytes_are_refused(log):
    with pytest.raises(InvariantViolation):
        log.append([batch(0) + b"x"], [header(0)], now_ms=NOW_MS)


def test_the_bytes_may_come_in_any_chunks(log):
    data = batch(0) + batch(1)
    log.append([data[:30], memoryview(data)[30:]], [header(0), header(1)], now_ms=NOW_MS)
    assert read(log, 0) == data


# --- epochs and producers -------------------------------------------------------------------------


def test_T37_epochs_follow_the_batches(log):
    append(log, batch(0, 2, epoch=1), batch(2, epoch=1), batch(3, epoch=4))
    append(log, batch(4, 2, epoch=4))
    assert log.epochs.entries() == ((1, 0), (4, 3))
    assert log.epochs.end_offset_for(3, log.log_end_offset) == (1, 3)


def test_I18_a_repeated_batch_is_recognised(log):
    append(log, batch(0, 3, producer=(9, 0, 0)))
    original = log.producers.check(header(0, 3, producer=(9, 0, 0)))
    assert original is not None
    assert (original.base_offset, original.last_offset) == (0, 2)
    assert log.producers.check(header(0, producer=(9, 0, 3))) is None


def test_I18_a_cut_batch_may_be_sent_again_and_the_one_before_is_still_known(
    log,
):
    for number in range(12):
        append(log, batch(number, producer=(9, 0, number)))
    log.truncate_to(9)
    assert log.producers.check(header(0, producer=(9, 0, 9))) is None
    for number in range(4, 9):
        original = log.producers.check(header(0, producer=(9, 0, number)))
        assert original is not None, number
        assert original.base_offset == number


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [compression.NONE, compression.GZIP])
def test_T39_time_finds_the_record_not_the_batch(log, codec):
    append(log, batch(0, 3, epoch=2, times=[10, 20, 30], codec=codec))
    append(log, batch(3, 3, epoch=3, times=[40, 50, 60], codec=codec))
    assert log.offset_by_time(0, end_offset=6) == TimedOffset(0, 10, 2)
    assert log.offset_by_time(20, end_offset=6) == TimedOffset(1, 20, 2)
    assert log.offset_by_time(41, end_offset=6) == TimedOffset(4, 50, 3)
    assert log.offset_by_time(61, end_offset=6) is None


def test_T39_the_first_record_counts_where_times_go_back(log):
    append(log, batch(0, 2, times=[50, 10]))
    append(log, batch(2, 2, times=[20, 70]))
    append(log, batch(4, 2, times=[60, 60]))
    assert log.offset_by_time(15, end_offset=6) == TimedOffset(0, 50, 0)
    assert log.offset_by_time(55, end_offset=6) == TimedOffset(3, 70, 0)


def test_T39_time_search_works_in_every_segment(log):
    for offset in range(50):
        append(log, batch(offset, times=[1_000 + 10 * offset]))
    for offset in range(50):
        found = log.offset_by_time(991 + 10 * offset, end_offset=50)
        assert found == TimedOffset(offset, 1_000 + 10 * offset, 0)


def test_time_search_sees_nothing_past_the_end_offset(log):
    append(log, batch(0, times=[10]), batch(1, times=[20]))
    assert log.offset_by_time(20, end_offset=1) is None
    assert log.max_timestamp(end_offset=1) == TimedOffset(0, 10, 0)
    assert log.max_timestamp(end_offset=0) is None


def test_time_search_sees_nothing_before_the_start_offset(log):
    append(log, batch(0, 4, times=[10, 90, 20, 30]))
    log.advance_start(2)
    assert log.offset_by_time(5, end_offset=4) == TimedOffset(2, 20, 0)
    assert log.offset_by_time(80, end_offset=4) is None


def test_T39_max_timestamp_is_the_first_record_that_has_it(log):
    append(log, batch(0, 3, times=[10, 80, 80]))
    for offset in range(3, 20):
        append(log, batch(offset, times=[80 - offset]))
    assert log.max_timestamp(end_offset=20) == TimedOffset(1, 80, 0)


def test_records_without_time_have_no_max_timestamp(log):
    append(log, batch(0, 2, times=[-1, -1]))
    assert log.max_timestamp(end_offset=2) is None


# --- cutting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1, 2, 5, 9, 20, 29])
def test_truncation_drops_the_offset_and_everything_after_it(log, offset):
    written = fill(log, 30)
    log.truncate_to(offset)
    assert log.log_end_offset == offset
    assert drain(log) == b"".join(written[:offset])
    assert log.size_bytes == len(b"".join(written[:offset]))
    more = batch(offset, epoch=1, value=b"other")
    append(log, more)
    assert read(log, offset) == more


def test_truncation_inside_a_batch_drops_the_whole_batch(log):
    fill(log, 5, records=4)
    log.truncate_to(14)
    assert log.log_end_offset == 12


def test_truncation_of_the_batch_that_holds_the_start_lowers_the_start(
    log,
):
    append(log, batch(0, 4))
    log.advance_start(2)
    log.truncate_to(3)
    assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (0, 0, 0)


def test_truncation_into_a_gap_ends_the_log_at_its_last_batch(log):
    append(log, batch(0), batch(10))
    log.truncate_to(7)
    assert log.log_end_offset == 1
    assert offsets_of(read(log, 0)) == [0]


def test_truncation_into_a_gap_before_all_batches_leaves_an_empty_log(log):
    append(log, batch(10))
    log.truncate_to(7)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)


def test_truncation_past_the_end_changes_nothing(log):
    written = fill(log, 3)
    log.truncate_to(3)
    log.truncate_to(99)
    assert drain(log) == b"".join(written)


def test_truncation_forgets_the_epochs_that_began_after_it(log):
    append(log, batch(0, 2, epoch=1), batch(2, 2, epoch=2), batch(4, epoch=3))
    log.truncate_to(3)
    assert log.epochs.entries() == ((1, 0),)
    append(log, batch(2, epoch=2))


def test_truncation_to_the_start_leaves_an_empty_log(log):
    fill(log, 10)
    log.advance_start(4)
    log.truncate_to(3)
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert log.epochs.entries() == ()


@pytest.mark.parametrize("offset", [0, 3, 10, 500])
def test_a_log_can_restart_at_any_offset(log, offset):
    append(log, batch(0, producer=(9, 0, 0)))
    fill(log, 9)
    log.restart_at(offset)
    assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (offset,) * 3
    assert (log.size_bytes, len(log.epochs), len(log.producers)) == (0, 0, 0)
    fill(log, 10)
    assert offsets_of(drain(log)) == list(range(offset, offset + 10))


def test_I9_the_start_offset_only_rises(log):
    fill(log, 10)
    log.advance_start(6)
    log.advance_start(2)
    assert log.log_start_offset == 6
    with pytest.raises(KafkaError):
        log.read(5, max_bytes=100, end_offset=10)
    assert offsets_of(drain(log)) == [6, 7, 8, 9]


def test_the_start_offset_stops_at_the_end_of_the_log(log):
    fill(log, 3)
    log.advance_start(3)
    assert log.log_start_offset == 3
    with pytest.raises(KafkaError) as refusal:
        log.advance_start(4)
    assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_T37_epochs_before_the_start_merge_into_the_one_that_holds_it(log):
    append(log, batch(0, 2, epoch=1), batch(2, 4, epoch=2), batch(6, epoch=3))
    log.advance_start(4)
    assert log.epochs.entries() == ((2, 4), (3, 6))
    assert log.epochs.end_offset_for(1, log.log_end_offset) == (1, 4)


# --- retention ------------------------------------------------------------------------------------


def test_retention_by_time_drops_what_is_older(new_log):
    log = new_log(LogConfig(segment_bytes=300, retention_ms=1_000))
    for offset in range(40):
        append(log, batch(offset, times=[NOW_MS + 100 * offset]))
    now_ms = NOW_MS + 100 * 20 + 1_001
    assert log.apply_retention(now_ms=now_ms, high_watermark=40) > 0
    assert 15 <= log.log_start_offset <= 21
    assert offsets_of(drain(log)) == list(range(log.log_start_offset, 40))
    assert log.apply_retention(now_ms=now_ms, high_watermark=40) == 0


def test_retention_by_time_drops_the_newest_data_too_when_it_expires(new_log):
    log = new_log(LogConfig(retention_ms=1_000))
    fill(log, 3)
    assert log.apply_retention(now_ms=NOW_MS + 1_000, high_watermark=3) == 0
    assert log.apply_retention(now_ms=NOW_MS + 1_001, high_watermark=3) > 0
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (3, 3, 0)
    fill(log, 1)
    assert offsets_of(drain(log)) == [3]


def test_retention_by_time_spares_records_without_time_for_as_long(new_log):
    log = new_log(LogConfig(retention_ms=1_000))
    append(log, batch(0, times=[-1]))
    assert log.apply_retention(now_ms=NOW_MS + 500, high_watermark=1) == 0
    assert log.apply_retention(now_ms=NOW_MS + 2_000, high_watermark=1) == 1


def test_retention_by_size_keeps_at_least_that_much(new_log):
    log = new_log(LogConfig(segment_bytes=300, retention_bytes=1_000))
    fill(log, 60)
    log.apply_retention(now_ms=NOW_MS, high_watermark=60)
    assert 1_000 <= log.size_bytes <= 1_300
    assert offsets_of(drain(log)) == list(range(log.log_start_offset, 60))


def test_retention_never_drops_what_is_not_replicated(new_log):
    log = new_log(LogConfig(segment_bytes=300, retention_ms=1_000))
    fill(log, 40)
    log.apply_retention(now_ms=NOW_MS + 10_000, high_watermark=11)
    assert log.log_start_offset <= 11
    assert log.log_end_offset == 40


def test_F35_retention_without_limits_drops_nothing(new_log):
    log = new_log(LogConfig(segment_bytes=300, retention_ms=-1, retention_bytes=-1))
    fill(log, 40)
    assert log.apply_retention(now_ms=NOW_MS * 2, high_watermark=40) == 0
    assert log.log_start_offset == 0


def test_a_changed_config_applies_from_then_on(log):
    fill(log, 10)
    log.set_config(LogConfig(retention_ms=10))
    assert log.config.retention_ms == 10
    assert log.apply_retention(now_ms=NOW_MS + 11, high_watermark=10) > 0


# --- flushing -------------------------------------------------------------------------------------


def test_everything_appended_is_flushed_after_a_flush(log):
    fill(log, 10)
    flush(log)
    assert log.flushed_offset == log.log_end_offset == 10
    assert log.take_flush_point() is None


def test_a_slice_knows_its_size(log):
    fill(log, 3)
    found = log.read(0, max_bytes=1 << 20, end_offset=3)
    assert found.size_bytes >= len(data_of(found)) > 0


# --- transactions --------------------------------------------------------------------------------


def aborted(log: PartitionLog, start: int, stop: int) -> list[tuple[int, int]]:
    return [(one.producer_id, one.first_offset) for one in log.find_aborted(start, stop)]


def test_T34_aborted_transactions_are_found_by_the_range_that_they_reach_into(log):
    transactions.write(log, 1)
    fill(log, 6)
    transactions.write(log, 2)
    transactions.end(log, 2, commit=True)
    transactions.end(log, 1, commit=False)
    fill(log, 6)
    assert aborted(log, 0, 1) == [(1, 0)]
    assert aborted(log, 3, 4) == [(1, 0)]
    assert aborted(log, 9, 10) == [(1, 0)]
    assert aborted(log, 10, 16) == []
    assert log.try_find_aborted(0, 1) == log.find_aborted(0, 1)


def test_I23_a_cut_marker_opens_its_transaction_again(log):
    transactions.write(log, 1)
    fill(log, 4)
    marker = transactions.end(log, 1, commit=False)
    fill(log, 4)
    log.truncate_to(marker.base_offset)
    assert log.producers.stable_offset(marker.base_offset) == 0
    assert aborted(log, 0, marker.base_offset) == []
    transactions.end(log, 1, commit=True)
    assert log.producers.stable_offset(log.log_end_offset) == log.log_end_offset


def test_a_control_batch_that_is_no_marker_is_refused_and_nothing_changes(log):
    fill(log, 1)
    odd = build_batch([Record(b"")], base_offset=1, leader_epoch=0, producer_id=1, control=True)
    with pytest.raises(CorruptBatch):
        append(log, bytes(odd))
    assert log.log_end_offset == 1
    assert offsets_of(drain(log)) == [0]


def test_a_slice_says_where_it_ends(log):
    fill(log, 5)
    for stop in range(1, 6):
        found = log.read(0, max_bytes=1 << 20, end_offset=stop)
        chunks = found.chunks if found.load is None else found.load()
        last = [head for _, head in iter_headers(b"".join(chunks))][-1]
        assert (end_of(chunks) if found.load else found.next_offset()) == last.next_offset
