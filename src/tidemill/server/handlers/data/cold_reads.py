"""Batches of a fetch that are not in memory: read in a thread, within the pool for answers (S40).

HOT PATH: once per fetch that reads behind the page cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tidemill.core.errors import DiskBusy, KafkaError, StorageFault
from tidemill.server.request.context import DataContext
from tidemill.server.request.partition_access import count_refusal
from tidemill.storage.log.interface import LogSlice
from tidemill.wire.generated.fetch import PartitionData

__all__ = ["ColdRead"]

THROTTLE_MS_WHEN_BUSY = 1000
"""A fetch that is refused at once would come again at once."""


@final
class ColdRead:
    """The cold batches of one fetch. Their memory is taken at once and given back by `run`."""

    __slots__ = ("_context", "_size_bytes", "_slices")

    def __init__(
        self, context: DataContext, slices: Sequence[tuple[PartitionData, LogSlice]]
    ) -> None:
        self._context = context
        self._slices = slices
        self._size_bytes = sum(found.size_bytes for _, found in slices)
        context.services.response_memory.take(self._size_bytes)

    async def run(self) -> None:
        """Read all batches into their places; damage becomes the error of its partition."""
        try:
            for data, found in self._slices:
                await self._read(data, found)
        finally:
            self._context.services.response_memory.give(self._size_bytes)

    async def _read(self, data: PartitionData, found: LogSlice) -> None:
        assert found.load is not None
        try:
            chunks = await self._context.services.disk.run(found.load)
        except (KafkaError, StorageFault) as error:
            if isinstance(error, DiskBusy):
                self._context.throttle_ms = THROTTLE_MS_WHEN_BUSY
            data.error_code = count_refusal(self._context, error)
            return
        data.records = chunks[0] if len(chunks) == 1 else b"".join(chunks)
