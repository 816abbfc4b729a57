"""A read of damaged bytes fails in its thread and says where: it neither hides nor invents any."""

from __future__ import annotations

import pytest

from tests.support.batches import batch, data_of, fill, flush
from tidemill.core.errors import KafkaError, StorageFault
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.log.interface import LogConfig, end_of
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.recovery.clean_load import CheckpointedLog
from tidemill.storage.recovery.log_recovery import recover
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.testing.sim.disk import SimDisk

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
