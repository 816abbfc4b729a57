"""What a fetch has to wait for: batches that are not in memory, and those of views.

HOT PATH: once per fetch that reads behind the page cache, or a view.

The former are read in a thread, the latter filtered, within the pool for answers (S40).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from tidemill.core.errors import DiskBusy, KafkaError, StorageFault
from tidemill.core.limits import FILTER_LOOP_BATCH_BYTES_MAX
from tidemill.server.fetching.aborted_search import AbortedSearch, listed
from tidemill.server.fetching.view_reader import ViewRead
from tidemill.server.request.context import DataContext
from tidemill.server.request.partition_access import count_refusal
from tidemill.storage.files.disk import Buffer
from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.log.interface import LogSlice
from tidemill.wire.generated.fetch import PartitionData

__all__ = ["ColdRead", "ColdSlice"]

THROTTLE_MS_WHEN_BUSY: Final = 1000
"""A fetch that is refused at once would come again at once."""


@final
class ColdSlice:
    """One partition's part of an answer that must come from the disk."""

    __slots__ = ("_aborted", "_found", "data")

    def __init__(
        self, data: PartitionData, found: LogSlice, aborted: AbortedSearch | None = None
    ) -> None:
        """`aborted`: the list of aborted transactions is to be found too."""
        self.data = data
        self._found = found
        self._aborted = aborted

    @property
    def size_bytes(self) -> int:
        """New memory that it takes, at most."""
        return self._found.size_bytes if self._found.load is not None else 0

    def read(self) -> tuple[Sequence[Buffer], list[AbortedTransaction] | None]:
        """For `Disk.run`."""
        chunks = self._found.chunks if self._found.load is None else self._found.load()
        return chunks, None if self._aborted is None else self._aborted.find(chunks)


@final
class ColdRead:
    """The cold batches of one fetch. Their memory is taken at once and given back by `run`."""

    __slots__ = ("_context", "_size_bytes", "_slices", "_views")

    def __init__(
        self,
        context: DataContext,
        slices: Sequence[ColdSlice],
        views: Sequence[ViewRead] = (),
    ) -> None:
        self._context = context
        self._slices = slices
        self._views = views
        self._size_bytes = sum(cold.size_bytes for cold in slices)
        self._size_bytes += sum(view.memory_bytes for view in views)
        if views:
            self._size_bytes += FILTER_LOOP_BATCH_BYTES_MAX  # one batch unpacked at a time
        context.services.response_memory.take(self._size_bytes)

    async def run(self) -> None:
        """Read all batches into their places; damage becomes the error of its partition."""
        try:
            for cold in self._slices:
                await self._read(cold)
            for view in self._views:
                await self._filter(view)
        finally:
            self._context.services.response_memory.give(self._size_bytes)

    async def _read(self, cold: ColdSlice) -> None:
        data = cold.data
        try:
            chunks, aborted = await self._context.services.disk.run(cold.read)
        except (KafkaError, StorageFault) as error:
            self._refuse(data, error)
            return
        data.records = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if aborted is not None:
            data.aborted_transactions = listed(aborted)

    async def _filter(self, view: ViewRead) -> None:
        try:
            services = self._context.services
            await view.run(services.disk, services.long_batches)
        except (KafkaError, StorageFault) as error:
            self._refuse(view.data, error)

    def _refuse(self, data: PartitionData, error: KafkaError | StorageFault) -> None:
        if isinstance(error, DiskBusy):
            self._context.throttle_ms = THROTTLE_MS_WHEN_BUSY
        data.error_code = count_refusal(self._context, error)
        data.records = b""  # librdkafka takes an answer without any for a broken one
