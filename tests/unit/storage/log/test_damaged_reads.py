"""A read of damaged bytes fails in its thread and says where: it neither hides nor invents any."""

from __future__ import annotations

import pytest

from tests.support.batches import append, batch, data_of, fill, flush
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig, end_of
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.recovery.clean_load import CheckpointedLog
from tidemill.storage.recovery.log_recovery import recover
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.testing.sim.disk import SimDisk
from tidemill.wire.batch import HEADER_BYTES

SIZE = len(batch(0))
PER_SEGMENT = 10
RECORDS = 35
CONFIG = LogConfig(segment_bytes=PER_SEGMENT * SIZE, index_interval_bytes=200)
PATH = "/d-0"
LENGTH_AT = 8
EPOCH_AT, MAGIC_AT = 12, 16
FOUND_BYTES = [*range(LENGTH_AT, EPOCH_AT), *range(MAGIC_AT, SIZE)]
"""All but offset and epoch, which no checksum covers: the mender compares those."""


def reloaded(disk: SimDisk) -> tuple[FilePartitionLog, FileCache]:
    """The log as the next process finds it: nothing of it was written or verified here."""
    files = FileCache(disk)
    state, _ = recover(
        disk,
        files,
        PATH,
        CheckpointedLog(recovery_point=RECORDS, size_bytes=RECORDS * SIZE),
        index_interval_bytes=CONFIG.index_interval_bytes,
        now_ms=0,
    )
    return FilePartitionLog(disk, files, PATH, CONFIG, state), files


def written(disk: SimDisk) -> tuple[FilePartitionLog, FileCache]:
    """The log of the process that has written it, and believes its pages; times are offsets."""
    files = FileCache(disk)
    log = FilePartitionLog.create(disk, files, PATH, CONFIG)
    for offset in range(RECORDS):
        append(log, batch(offset, times=[offset]))
    flush(log)
    return log, files


def read_to_the_end(log: FilePartitionLog, offset: int, max_bytes: int) -> bytes:
    """As consumers do; fails if a read gives nothing, or nothing new."""
    data = b""
    while offset < RECORDS:
        found = log.read(offset, max_bytes=max_bytes, end_offset=RECORDS)
        some = data_of(found)
        assert some, f"nothing at {offset}"
        end = end_of([some])
        assert end > offset
        offset, data = end, data + some
    return data


@pytest.mark.parametrize("max_bytes", [1, 200, 2_000])
@pytest.mark.parametrize("place", [0, 4, PER_SEGMENT - 1])
@pytest.mark.parametrize("bit", [0, 4, 7])
def test_I17_damage_in_a_batch_is_found_by_the_read_that_meets_it(place, bit, max_bytes):
    disk = SimDisk()
    written = b"".join(fill(FilePartitionLog.create(disk, FileCache(disk), PATH, CONFIG), RECORDS))
    for byte in FOUND_BYTES:
        log, files = reloaded(disk)
        segment = list(log.segments)[1]
        disk.flip_bit(segment.path, place * SIZE + byte, bit)
        try:
            assert read_to_the_end(log, 0, max_bytes) == written, "wrong bytes"
        except (KafkaError, StorageFault):
            assert set(files.suspects) == {segment.path}
        else:
            pytest.fail(f"byte {byte} was not noticed")
        disk.flip_bit(segment.path, place * SIZE + byte, bit)


def test_bytes_that_were_verified_once_are_sent_without_a_copy():
    disk = SimDisk()
    fill(log := FilePartitionLog.create(disk, FileCache(disk), PATH, CONFIG), RECORDS)
    flush(log)
    log, _ = reloaded(disk)
    first = log.read(0, max_bytes=1 << 20, end_offset=RECORDS)
    assert first.load is not None
    first.load()
    again = log.read(0, max_bytes=1 << 20, end_offset=RECORDS)
    assert again.load is None
    assert isinstance(again.chunks[0], memoryview)


@pytest.mark.parametrize("byte", [LENGTH_AT, MAGIC_AT, MAGIC_AT + 10])
def test_records_before_a_damaged_header_can_be_read(byte):
    disk = SimDisk()
    log = FilePartitionLog.create(disk, FileCache(disk), PATH, CONFIG)
    written = fill(log, RECORDS)
    flush(log)
    disk.flip_bit(list(log.segments)[1].path, 4 * SIZE + byte, 4)
    log.damage.note(DamagedRange(14, 15))
    found = log.read(12, max_bytes=1 << 20, end_offset=RECORDS)
    assert data_of(found) == b"".join(written[12:14])


def assert_told(refused: pytest.ExceptionInfo[KafkaError], files: FileCache, path: str) -> None:
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert set(files.suspects) == {path}


@pytest.mark.parametrize("place", [1, 3])
@pytest.mark.parametrize("byte", [LENGTH_AT, MAGIC_AT])
def test_a_search_in_memory_that_meets_a_damaged_header_is_one_to_try_again(place, byte):
    disk = SimDisk()
    log, files = written(disk)
    segment = list(log.segments)[place]
    disk.flip_bit(segment.path, SIZE + byte, 4)
    found = log.read(segment.base_offset + 2, max_bytes=1, end_offset=RECORDS)
    assert found.load is not None
    with pytest.raises(KafkaError) as refused:
        found.load()
    assert_told(refused, files, segment.path)


@pytest.mark.parametrize("max_bytes", [1, 200, 2_000])
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("place", [1, 3])
def test_I17_no_damaged_header_that_is_known_misleads_a_read_behind_it(place, bit, max_bytes):
    disk = SimDisk()
    log, _ = written(disk)
    segment = list(log.segments)[place]
    damaged = segment.base_offset + 1
    log.damage.note(DamagedRange(damaged, damaged + 1))
    for byte in range(HEADER_BYTES):
        disk.flip_bit(segment.path, SIZE + byte, bit)
        try:
            found = data_of(log.read(damaged + 1, max_bytes=max_bytes, end_offset=RECORDS))
        except (KafkaError, StorageFault):
            pass
        else:
            assert found.startswith(batch(damaged + 1, times=[damaged + 1])), f"byte {byte}"
        disk.flip_bit(segment.path, SIZE + byte, bit)


def test_a_search_by_time_that_meets_damage_is_one_to_try_again():
    disk = SimDisk()
    log, files = written(disk)
    segment = log.segments.oldest
    disk.flip_bit(segment.path, 7 * SIZE + MAGIC_AT, 4)
    with pytest.raises(KafkaError) as refused:
        log.offset_by_time(8, end_offset=RECORDS)
    assert_told(refused, files, segment.path)


def test_a_search_for_the_greatest_time_that_meets_damage_is_one_to_try_again():
    disk = SimDisk()
    log, files = written(disk)
    segment = log.segments.oldest
    disk.flip_bit(segment.path, 7 * SIZE + MAGIC_AT, 4)
    with pytest.raises(KafkaError) as refused:
        log.max_timestamp(end_offset=PER_SEGMENT - 1)
    assert_told(refused, files, segment.path)
