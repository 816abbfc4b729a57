"""HOT PATH. What one flush of one log covers: made for every log of every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from tidemill.storage.files.disk import DiskFile

__all__ = ["FlushPoint", "UnsyncedTail"]


@final
class UnsyncedTail:
    """The end of one segment's file that a flush covers: the file holds unsynced bytes."""

    __slots__ = ("base_offset", "end", "file", "start")

    def __init__(self, file: DiskFile, base_offset: int, start: int, end: int) -> None:
        self.file = file
        self.base_offset = base_offset
        """Of the segment."""
        self.start = start
        """Everything before this position is durable: synced, or in the journal."""
        self.end = end


@final
class FlushPoint:
    """What one flush of one log covers. Taken on the loop, made durable, then reported.

    It is durable when all files of `tails` are synced and then `finish` was called, or, if it has a
    `journal_name`, when the bytes of `tails` are in the journal.
    """

    __slots__ = ("finish", "journal_lap", "journal_name", "log_end_offset", "tails", "token")

    def __init__(
        self,
        log_end_offset: int,
        tails: Sequence[UnsyncedTail] = (),
        finish: Callable[[], None] | None = None,
        token: object = None,
        journal_name: bytes = b"",
    ) -> None:
        self.log_end_offset = log_end_offset
        self.tails = tails
        self.finish = finish
        """What follows the syncs, in a thread: new names, small files. Raises StorageFault."""
        self.token = token
        """The log's own record of what this point covers."""
        self.journal_name = journal_name
        """How the journal calls the log; empty: its files must be synced."""
        self.journal_lap = 0
        """The lap of the journal that the bytes went to; 0: the files were synced."""

    def sync(self) -> None:
        """Sync the files and finish; blocks. Raises StorageFault."""
        for tail in self.tails:
            tail.file.sync()
        if self.finish is not None:
            self.finish()
