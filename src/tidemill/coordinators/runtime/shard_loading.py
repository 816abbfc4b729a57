"""Replays a partition's log into a shard, in slices that give other tasks turns of the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.coordinators.runtime.shard import Shard
from tidemill.core.loop.pacing import next_turn
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.files.disk_work import DiskWork
from tidemill.storage.log.interface import LogSlice, PartitionLog
from tidemill.wire.batch import iter_headers, verify
from tidemill.wire.records import iter_records

__all__ = ["ReadablePartition", "replay_log"]

READ_BYTES = 1 << 20
RECORDS_PER_SLICE = 256
"""Records replayed before other tasks get a turn of the loop: about 2 ms."""


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
        replayed = 0
        for chunk in chunks:
            view = memoryview(chunk)
            for position, header in iter_headers(view):
                batch = view[position : position + header.size_bytes]
                verify(batch, header)
                offset = header.next_offset
                for record in () if header.is_control else iter_records(batch, header):
                    shard.replay(record.key or b"", record.value)
                    replayed += 1
                    if replayed % RECORDS_PER_SLICE == 0:
                        await next_turn()
                        if not is_wanted():
                            return count + replayed
        count += replayed
        if not chunks:
            break  # compaction removed the rest
    return count
