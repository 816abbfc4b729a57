"""The times of a view, for ListOffsets: of the records that it shows, not of all that its base has.

The indexes of the base find where a search by time begins. From there on batches are filtered as
for a fetch, in slices of the event loop, and as much of them per request as a fetch looks at. A
search by time that has to stop there answers with its place: what the view shows of that time comes
at this offset or later, so a reader that begins there misses nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Final, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    FILTER_LOOP_BATCH_BYTES_MAX,
    FILTERED_FETCH_LOOK_BYTES_MAX,
    FILTERED_LOOK_BYTES_MAX,
)
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.replication.partition import Partition
from tidemill.server.request.context import DataContext
from tidemill.storage.files.disk import Buffer
from tidemill.storage.log.batch_finder import first_record_at_time
from tidemill.storage.log.interface import TimedOffset
from tidemill.wire.batch import NO_TIMESTAMP, iter_headers
from tidemill.wire.generated.fetch import PartitionData

__all__ = ["ViewTimes"]

_NO_END: Final = 2**63 - 1


@final
class ViewTimes:
    """The searches of one request."""

    def __init__(self, context: DataContext) -> None:
        self._context = context
        self._left_bytes = FILTERED_FETCH_LOOK_BYTES_MAX

    async def first_from(
        self, view: TopicImage, partition: Partition, timestamp_ms: int, *, end_offset: int
    ) -> TimedOffset | None:
        """The first record that the view shows with this timestamp or a later one. KafkaError."""
        log = partition.log
        offset = log.log_start_offset
        if not view.config.tidemill_view_held:  # the times of held records are in no index
            search = partial(log.offset_by_time, timestamp_ms, end_offset=end_offset)
            begin = await self._context.services.disk.run(search)
            offset = end_offset if begin is None else begin.offset
        while offset < end_offset:
            if self._left_bytes <= 0:
                return TimedOffset(offset, timestamp_ms, log.epochs.epoch_at(offset))
            shown, offset = await self._look(view, partition, offset, end_offset)
            found = await self._context.services.disk.run(partial(_first_of, shown, timestamp_ms))
            if found is not None:
                return found
        return None

    async def greatest(
        self, view: TopicImage, partition: Partition, *, end_offset: int
    ) -> TimedOffset | None:
        """The first of the records with the greatest timestamp that the view shows.

        KafkaError POLICY_VIOLATION if the base is too large to look at all of it.
        """
        offset, greatest = partition.log.log_start_offset, None
        while offset < end_offset:
            if self._left_bytes <= 0:
                detail = "the base has too many records to look for the view's greatest timestamp"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)
            shown, offset = await self._look(view, partition, offset, end_offset)
            found = await self._context.services.disk.run(partial(_greatest_of, shown))
            if found is not None and (
                greatest is None or found.timestamp_ms > greatest.timestamp_ms
            ):
                greatest = found
        return greatest

    async def _look(
        self, view: TopicImage, partition: Partition, offset: int, end_offset: int
    ) -> tuple[Buffer, int]:
        """What the view shows from `offset` on, and up to where that was looked at."""
        services = self._context.services
        data = PartitionData()
        read = services.views.try_read(
            view,
            partition,
            data,
            fetch_offset=max(offset, partition.log.log_start_offset),
            end_offset=end_offset,
            bytes_max=FILTERED_LOOK_BYTES_MAX,
        )
        if read is None:
            return b"", end_offset
        self._left_bytes -= read.looked_bytes
        memory_bytes = read.memory_bytes + FILTER_LOOP_BATCH_BYTES_MAX
        services.response_memory.take(memory_bytes)
        try:
            await read.run(services.disk, services.long_batches)
        finally:
            services.response_memory.give(memory_bytes)
        reached = read.next_offset
        return data.records or b"", reached if reached > offset else end_offset


def _first_of(shown: Buffer, timestamp_ms: int) -> TimedOffset | None:
    """For `Disk.run`."""
    view = memoryview(shown)
    for position, header in iter_headers(view):
        if header.is_control or header.max_timestamp < timestamp_ms:
            continue
        batch = view[position : position + header.size_bytes]
        found = first_record_at_time(
            batch, header, timestamp_ms, start_offset=header.base_offset, end_offset=_NO_END
        )
        if found is not None:
            return found
    return None


def _greatest_of(shown: Buffer) -> TimedOffset | None:
    """For `Disk.run`."""
    headers = [header for _, header in iter_headers(memoryview(shown)) if not header.is_control]
    greatest = max((header.max_timestamp for header in headers), default=NO_TIMESTAMP)
    return None if greatest == NO_TIMESTAMP else _first_of(shown, greatest)
