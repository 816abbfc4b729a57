"""HOT PATH. Room for records, and a reserve that records leave to everything else. Pure.

Budget: an append takes 0.1 us here, and no system call.

A file system without a free block stops more than producers: the metadata store on the same disk
can no longer change in-sync sets, elect, or delete the topic that would make room. So records are
refused while a reserve is still free. What it is for decides how far an append may go into it:

    free                   who is refused
    below the reserve      produced records: they are many, and new
    below 3/4 of it        copies of a leader's records: it has accepted them, and waits
    below 1/2 of it        what this broker writes for itself: offsets, groups, transactions,
                           markers, compaction, releases and carried copies of held records;
                           and whoever would get there by writing a damaged segment anew.
                           Consumers that commit are how a queue gets empty, and retention passes
                           a hold only when that has moved
    never                  metadata, checkpoints, deletions, indexes, snapshots

Brokers that share a disk see the same free bytes, so a leader stops before its followers do.

Nobody asks the file system per append. A look (`RoomWatch`) says what is free; until the next one
every append takes its bytes from that, so one broker alone never goes below a limit, however late
the look is. Only what others write to the disk is noticed by looks: one is asked for early
(`on_due`) when much has been taken since the last one, or when records are refused for the first
time. Once refused, records are let in again when an eighth of the reserve is free above it:
otherwise each freed block would be a change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn, final

from tidemill.core.errors import DiskReserved
from tidemill.core.limits import DISK_LOOK_BYTES_MIN, DISK_LOOK_SHARE, DISK_RESERVE_SHARE

__all__ = ["DiskRoom"]

_BOUNDLESS: Final = 1 << 60
_RETURN_SHARE: Final = 8


@final
class DiskRoom:
    """What may still be appended to the logs of one data directory; without looks, anything."""

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._taken_bytes = 0
        """By all appends so far."""
        self._records_end = _BOUNDLESS
        """Of `_taken_bytes`: produced records are refused beyond it."""
        self._copies_end = _BOUNDLESS
        self._own_end = _BOUNDLESS
        self._look_at = _BOUNDLESS
        self._was_refused = False
        """Something was refused since the last look, by the reserve or by the file system."""
        self.reserve_bytes = 0
        self.is_refusing = False
        """The last look found too little room for records."""
        self.on_due: Callable[[], None] = _nothing
        """Called when the next look is wanted soon."""

    # --- appends ---------------------------------------------------------------------------------

    def take_for_records(self, size_bytes: int) -> None:
        """Before produced records are appended. Raises DiskReserved."""
        taken = self._taken_bytes + size_bytes
        if taken > self._records_end:
            self._refuse("records")
        self._took(taken)

    def take_for_copies(self, size_bytes: int) -> None:
        """Before copies of another replica's records are stored. Raises DiskReserved."""
        taken = self._taken_bytes + size_bytes
        if taken > self._copies_end:
            self._refuse("copies of records")
        self._took(taken)

    def take_for_own(self, size_bytes: int) -> None:
        """Before this broker stores something for itself. Raises DiskReserved."""
        taken = self._taken_bytes + size_bytes
        if taken > self._own_end:
            self._refuse("offsets, groups, transactions, held records and compaction")
        self._took(taken)

    def check_for_own(self, size_bytes: int) -> None:
        """Before this broker writes a copy of so much, which looks will notice. DiskReserved.

        Nobody waits for it: its refusal is no reason to look again, or to refuse records.
        """
        if self._taken_bytes + size_bytes > self._own_end:
            raise self._reserved("another copy of a segment")

    def _took(self, taken: int) -> None:
        self._taken_bytes = taken
        if taken >= self._look_at:
            self._look_at = _BOUNDLESS
            self.on_due()

    def _refuse(self, whom: str) -> NoReturn:
        if not self.is_refusing and not self._was_refused:
            self.on_due()
        self._was_refused = True
        raise self._reserved(whom)

    def _reserved(self, whom: str) -> DiskReserved:
        return DiskReserved(
            f"{self._path}: No space left for {whom}, "
            f"a reserve of {self.reserve_bytes} bytes is kept for metadata and deletions"
        )

    def was_full(self) -> None:
        """The file system had no block for an append."""
        self._was_refused = True

    # --- looks -----------------------------------------------------------------------------------

    def begin_look(self) -> int:
        """Before the file system is asked; what comes back is for `end_look`."""
        return self._taken_bytes

    def end_look(
        self, taken_before: int, *, total_bytes: int, free_bytes: int, reserve_bytes: int
    ) -> None:
        """What the file system said, and the reserve as it is configured; 0: there is none.

        Bytes that were taken since the look began may be missing from what it found.
        """
        self.reserve_bytes = reserve = min(reserve_bytes, total_bytes // DISK_RESERVE_SHARE)
        if not reserve:
            self.forget()
            return
        needed = reserve
        if self.is_refusing or self._was_refused:
            needed += reserve // _RETURN_SHARE
        self.is_refusing = free_bytes < needed
        self._was_refused = False
        room = 0 if self.is_refusing else free_bytes - reserve
        self._records_end = taken_before + room
        self._copies_end = taken_before + free_bytes - reserve * 3 // 4
        self._own_end = taken_before + free_bytes - reserve // 2
        self._look_at = taken_before + max(DISK_LOOK_BYTES_MIN, room // DISK_LOOK_SHARE)

    def forget(self) -> None:
        """Nobody knows what is free: records are refused by the file system alone."""
        self.is_refusing = self._was_refused = False
        self._records_end = self._copies_end = self._own_end = self._look_at = _BOUNDLESS


def _nothing() -> None:
    return
