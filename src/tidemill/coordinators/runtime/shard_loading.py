"""Replays a partition's log into a shard, in slices that give other tasks turns of the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.coordinators.runtime.shard import ProducerName, Shard
from tidemill.core.loop.pacing import next_turn
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.interface import LogSlice, PartitionLog
from tidemill.wire.batch import BatchHeader, iter_headers, verify
from tidemill.wire.records import Record, iter_records

__all__ = ["ReadablePartition", "pause_s_after", "replay_log"]

READ_BYTES = 1 << 20
RECORDS_PER_SLICE = 256
"""Records replayed before other tasks get a turn of the loop: about 2 ms."""
RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 30.0
"""A log that stays unreadable is read again twice a minute."""
_COMMIT = b"\x00\x01"
"""The type in a marker's key, after two bytes of version; abort is 0."""


def pause_s_after(failures: int) -> float:
    """How long to wait after this many failed loads in a row: doubled each time, up to a bound."""
    doublings = min(failures - 1, 10)
    return min(RETRY_FIRST_S * 2.0**doublings, RETRY_LONGEST_S)


class ReadablePartition(Protocol):
    """The partition whose log is replayed."""

    @property
    def log(self) -> PartitionLog: ...

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool
    ) -> LogSlice: ...


async def replay_log(
    partition: ReadablePartition, shard: Shard, disk: Disk, *, is_wanted: Callable[[], bool]
) -> int:
    """Replay the whole log and return the number of records; stop early if no longer wanted.

    KafkaError, ProtocolViolation or StorageFault: the log cannot be read or makes no sense.
    """
    count = 0
    log = partition.log
    offset = log.log_start_offset
    while offset < log.log_end_offset and is_wanted():
        found = partition.read(
            offset, max_bytes=READ_BYTES, end_offset=log.log_end_offset, at_least_one=True
        )
        chunks: Sequence[Buffer] = found.chunks
        if found.load is not None:
            chunks = await disk.run(found.load, DiskWork.BACKGROUND)
            if not is_wanted():
                return count
        replayed = 0
        for chunk in chunks:
            view = memoryview(chunk)
            for position, header in iter_headers(view):
                batch = view[position : position + header.size_bytes]
                verify(batch, header)
                offset = header.next_offset
                for record in iter_records(batch, header):
                    _replay(shard, header, record)
                    replayed += 1
                    if replayed % RECORDS_PER_SLICE == 0:
                        await next_turn()
                        if not is_wanted():
                            return count + replayed
        count += replayed
        if not chunks:
            break  # compaction removed the rest
    return count


def _replay(shard: Shard, header: BatchHeader, record: Record) -> None:
    key = record.key or b""
    if not header.is_transactional:
        shard.replay(key, record.value)
        return
    producer = ProducerName(header.producer_id, header.producer_epoch)
    if header.is_control:
        shard.replay_marker(producer, is_commit=key[2:4] == _COMMIT)
    else:
        shard.replay_pending(key, record.value, producer)
