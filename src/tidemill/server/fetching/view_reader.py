"""Reads through a filter: of a view, or the lens over a topic that has held records.

Both find what a fetch has to look at, and filter it in slices of the event loop.

A fetch of a view looks at a few megabytes of its base and is then answered, with whatever matched
and a skip batch. If it has seen everything and nothing matched, it waits for more. Batches that
are not in memory are read in a thread; matching runs on the loop in pieces of about a millisecond.
Selectors are compiled once, and what is known to have no match is jumped over. A view of what is
held has no selector: the book of the partition says what it shows.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    FILTERED_FETCH_LOOK_BYTES_MAX,
    FILTERED_FETCH_PARTITIONS_MAX,
    FILTERED_LOOK_BYTES_MAX,
    SELECTOR_PROGRAMS_MAX,
)
from tidemill.core.loop.pacing import next_turn
from tidemill.delivery.filter.lexer import SelectorError
from tidemill.delivery.filter.program import compile_selector
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.matchless import MatchlessCache
from tidemill.delivery.view_walk import ViewWalk
from tidemill.hot.header_match import Program
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.replication.partition import Partition
from tidemill.server.fetching.aborted_search import AbortedSearch
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.storage.index.aborted_index import AbortedTransaction
from tidemill.storage.log.interface import LogSlice
from tidemill.wire.generated.fetch import AbortedTransaction as FetchedAbort
from tidemill.wire.generated.fetch import PartitionData

__all__ = ["ViewRead", "ViewReader"]

_HELD = "\0held"
"""Stands for the selector of a view of what is held; no selector has that text."""


@final
class ViewRead:
    """What one fetch looks at in one partition of a view."""

    def __init__(
        self,
        reader: ViewReader,
        key: Hashable,
        walk: ViewWalk,
        *,
        found: LogSlice,
        data: PartitionData,
        fetch_offset: int,
        end_offset: int,
        size_bytes: int,
        aborted: Sequence[AbortedTransaction] = (),
        search: AbortedSearch | None = None,
    ) -> None:
        """For a reader of committed records: what was `aborted` in `found`, or how to search it."""
        self._aborted = aborted
        self._search = search
        self._reader = reader
        self._key = key
        self._walk = walk
        self._fetch_offset = fetch_offset
        self._end_offset = end_offset
        self._found = found
        self.data = data
        """Where the answer goes."""
        self.size_bytes = size_bytes
        """The most that the answer is expected to have."""
        self.looked_bytes = found.size_bytes
        """What is to be filtered."""
        cold_bytes = 0 if found.load is None else found.size_bytes
        self.memory_bytes = size_bytes + cold_bytes
        """What filtering may hold: the answer and what was read for it."""

    async def run(self, disk: Disk, long_batches: asyncio.Semaphore) -> None:
        """Filter the batches into `data`; KafkaError or StorageFault.

        A batch that is too long for the loop is held by one fetch at a time.
        """
        found, walk = self._found, self._walk
        chunks: Sequence[Buffer] = found.chunks
        if found.load is not None or self._search is not None:
            chunks = await disk.run(self._load)
        steps = walk.steps(chunks)
        async with AsyncExitStack() as held:
            outcome: Buffer | None = None
            is_holding = False
            while True:
                try:
                    job = steps.send(outcome)
                except StopIteration:
                    break
                if job is None:
                    await next_turn()
                    outcome = None
                    continue
                if not is_holding:
                    await held.enter_async_context(long_batches)
                    is_holding = True
                outcome = await disk.run(job)
        self._reader.remember(self._key, walk.quiet)
        self.data.records = walk.answer()
        self._name_transactions()

    def _load(self) -> Sequence[Buffer]:
        """For `Disk.run`."""
        chunks = self._found.chunks if self._found.load is None else self._found.load()
        if self._search is not None:
            self._aborted = self._search.find(chunks)
        return chunks

    @property
    def next_offset(self) -> int:
        """Everything before it was looked at."""
        return self._walk.next_offset

    @property
    def is_quiet(self) -> bool:
        """Whether everything that there is was looked at, and nothing matched."""
        walk = self._walk
        return not self.data.error_code and walk.is_empty and walk.next_offset >= self._end_offset

    def pass_over(self) -> None:
        """The fetch waits for more: what was looked at is not looked at again."""
        self._reader.remember(self._key, [(self._fetch_offset, self._walk.next_offset)])

    def _name_transactions(self) -> None:
        """Name aborted transactions with records in the answer, each from its first batch there.

        kafkajs takes in one entry per record, in order: an entry without a record of its own, or
        one from before it, would keep another's from being taken in time.
        """
        if self._aborted:
            named = filter(None, map(self._sent_of, self._aborted))
            self.data.aborted_transactions = sorted(named, key=lambda one: one.first_offset)

    def _sent_of(self, aborted: AbortedTransaction) -> FetchedAbort | None:
        sent = self._walk.sent_batches.get(aborted.producer_id, [])
        at = bisect_left(sent, aborted.first_offset)
        if at == len(sent) or sent[at] > aborted.last_offset:
            return None
        return FetchedAbort(producer_id=aborted.producer_id, first_offset=sent[at])


@final
class ViewReader:
    """The compiled selectors of a broker's views, and where they have no match."""

    def __init__(self) -> None:
        self._programs: OrderedDict[str, Program] = OrderedDict()
        self._matchless = MatchlessCache()

    def may_look_on(self, partitions: int, looked_bytes: int) -> bool:
        """Whether a fetch that looks at so much looks at one partition more."""
        return (
            partitions < FILTERED_FETCH_PARTITIONS_MAX
            and looked_bytes < FILTERED_FETCH_LOOK_BYTES_MAX
        )

    def try_read(
        self,
        view: TopicImage | None,
        partition: Partition,
        data: PartitionData,
        *,
        fetch_offset: int,
        end_offset: int,
        bytes_max: int,
        reads_committed: bool = False,
    ) -> ViewRead | None:
        """What to look at from `fetch_offset` on; None if there is nothing. KafkaError.

        Without a view all records are shown that are not held.
        """
        holds, shown, program = None, None, None
        if view is not None and view.config.tidemill_view_held:
            holds, shown = _book_of(partition), _HELD
            # A transaction that is open decides about what it has sent: readers wait for it.
            end_offset = min(end_offset, partition.last_stable_offset())
        elif view is not None:
            shown = view.config.tidemill_view_filter
            program = self._program(shown)
        log = partition.log
        key = (partition.topic_id, partition.name.partition, partition.leader_epoch, shown)
        matchless = self._matchless.ranges(key)
        start_offset = fetch_offset
        if log.log_start_offset <= fetch_offset < end_offset:
            start_offset = min(matchless.end_from(fetch_offset), end_offset)
        found = partition.read(
            start_offset,
            max_bytes=FILTERED_LOOK_BYTES_MAX,
            end_offset=end_offset,
            at_least_one=True,
        )
        if start_offset == fetch_offset and not found.size_bytes:
            return None
        aborted: Sequence[AbortedTransaction] | None = ()
        search: AbortedSearch | None = None
        if reads_committed and holds is None:
            search = AbortedSearch(log, start_offset)
            aborted = search.try_find(found)
        walk = ViewWalk(
            program,
            partition=partition.name.partition,
            fetch_offset=fetch_offset,
            start_offset=start_offset,
            leader_epoch=log.epochs.epoch_at(max(start_offset - 1, 0)),
            bytes_max=bytes_max,
            matchless=matchless,
            holds=holds,
        )
        size_bytes = max(1, min(found.size_bytes, bytes_max))
        return ViewRead(
            self,
            key,
            walk,
            found=found,
            data=data,
            fetch_offset=fetch_offset,
            end_offset=end_offset,
            size_bytes=size_bytes,
            aborted=aborted or (),
            search=search if aborted is None else None,
        )

    def remember(self, key: Hashable, ranges: Iterable[tuple[int, int]]) -> None:
        """Keep where a walk has found no match."""
        for start, end in ranges:
            self._matchless.add(key, start, end)

    def _program(self, selector: str) -> Program:
        found = self._programs.get(selector)
        if found is None:
            try:
                found = compile_selector(selector)
            except SelectorError as error:
                # Stored by a version that knows more: nothing is better than too much.
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
            self._programs[selector] = found
            if len(self._programs) > SELECTOR_PROGRAMS_MAX:
                self._programs.popitem(last=False)
        self._programs.move_to_end(selector)
        return found


def _book_of(partition: Partition) -> HoldBook:
    """What the partition holds; KafkaError while that is being read after a start or a cut."""
    holds = partition.holds
    if holds is None:
        return HoldBook()
    if not holds.is_whole:
        detail = "the holds of the partition are being read"
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
    return holds.book
