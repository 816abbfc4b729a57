"""Rebuilds the book of a partition from its log, after a start or a cut."""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import (
    HOLD_REPLAY_BYTES,
    REPLAYED_RECORD_BYTES,
    REPLAYED_RECORDS_PER_SLICE,
)
from tidemill.core.loop.pacing import Pacer, next_turn
from tidemill.delivery.holds.events import concerns_holds, events_of, open_records
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.storage.files.disk import Disk
from tidemill.storage.log.interface import PartitionLog
from tidemill.wire.batch import iter_headers

__all__ = ["end_of_loss", "replay"]


async def replay(holds: PartitionHolds, disk: Disk) -> None:
    """Fold what the book lacks, up to the end of the log, and adopt the book.

    That is everything from the first veiled batch or a snapshot on, or only what a follower was
    sent at once. What no replica has any more is passed over: all others would wait behind it. The
    log may grow meanwhile; if it is cut, somebody asks for another replay. Raises KafkaError,
    StorageFault.
    """
    cuts, log = holds.cuts, holds.partition.log
    book, offset = holds.try_resume() or await _opened(holds, disk)
    pacer = Pacer(REPLAYED_RECORDS_PER_SLICE)
    while holds.cuts == cuts and not log.is_closed:
        end = log.log_end_offset
        if offset >= end:
            holds.adopt(book)
            return
        try:
            found = log.read(offset, max_bytes=HOLD_REPLAY_BYTES, end_offset=end)
        except KafkaError as error:
            offset = end_of_loss(log, offset, error)
            continue
        chunks = found.chunks if found.load is None else await disk.run(found.load)
        if not chunks:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"no batch at offset {offset}")
        if holds.cuts != cuts:
            return
        holds.settle(book)  # or the ends of a long log would all be kept
        for chunk in chunks:
            view = memoryview(chunk)
            for position, header in iter_headers(view):
                if concerns_holds(header):
                    section = open_records(view[position:], header)
                    await pacer.step(header.record_count + len(section) // REPLAYED_RECORD_BYTES)
                    events = events_of(view[position:], header, section=section)
                    book.fold(events, offset=header.next_offset)
                    spill = holds.spills.try_take(book)
                    if spill is not None:
                        await holds.spills.write(disk, book, spill)
                offset = header.next_offset
            await next_turn()


async def _opened(holds: PartitionHolds, disk: Disk) -> tuple[HoldBook, int]:
    """The book to begin with, and from where the log is to be folded into it."""
    cuts = holds.cuts
    book = await holds.spills.open_book(disk)
    if holds.cuts == cuts and book.next_offset < holds.partition.log.log_start_offset:
        # Of a snapshot, if the log start has passed it meanwhile: nobody knows what ended between.
        # After a cut the files are those of the book that it began.
        book = holds.spills.new_book()
    return book, max(holds.replay_offset, book.next_offset)


def end_of_loss(log: PartitionLog, offset: int, error: KafkaError) -> int:
    """Where the log goes on behind what no replica has; the error of the read if it is another."""
    lost = log.damage.try_given_up(offset)
    if lost is None or error.code is not ErrorCode.CORRUPT_MESSAGE:
        raise error
    return lost.end_offset
