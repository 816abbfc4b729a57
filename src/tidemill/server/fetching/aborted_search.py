"""The aborted transactions in what a reader of committed records is given (T34)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.storage.files.disk import Buffer
from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.log.interface import LogSlice, PartitionLog, end_of
from tidemill.wire.batch import CorruptBatch
from tidemill.wire.generated.fetch import AbortedTransaction as FetchedAbort

__all__ = ["AbortedSearch", "listed"]


@final
class AbortedSearch:
    """A search in the index of one partition, for the batches that were found there."""

    __slots__ = ("_fetch_offset", "_log")

    def __init__(self, log: PartitionLog, fetch_offset: int) -> None:
        self._log = log
        self._fetch_offset = fetch_offset

    def try_find(self, found: LogSlice) -> list[AbortedTransaction] | None:
        """The list for these batches; None if that needs the disk: call `find`."""
        if self._log.producers.last_abort_offset < self._fetch_offset:
            return []
        if found.load is not None:
            return None
        if not found.chunks:
            return []
        return self._log.try_find_aborted(self._fetch_offset, self._end(found.next_offset))

    def find(self, chunks: Sequence[Buffer]) -> list[AbortedTransaction]:
        """The same: for `Disk.run`."""
        if not chunks:
            return []
        return self._log.find_aborted(self._fetch_offset, self._end(partial(end_of, chunks)))

    def _end(self, find: Callable[[], int]) -> int:
        """Batches in memory are not verified: damage in one of their headers is met here."""
        try:
            return find()
        except CorruptBatch as damage:
            self._log.doubt(self._fetch_offset)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, damage.detail) from damage


def listed(aborted: Sequence[AbortedTransaction]) -> list[FetchedAbort]:
    """The list as an answer has it."""
    return [
        FetchedAbort(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted
    ]
