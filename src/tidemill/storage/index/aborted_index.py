"""The aborted transactions whose markers are in one segment, in the order of their markers (T34).

A reader of committed records is told which transactions in its range were aborted, and skips their
records. An entry is what the marker says of itself (`transaction_marker`), so the index can be
rebuilt from the segment alone.

The file follows the offset index's rules: checked blocks, synced bytes only, never needed. Each
block says how many entries of the offset index were stored with it: markers before the last of
these are all in the block or in an earlier one. A segment without a marker has no file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import NamedTuple, final

from tidemill.storage.files.checked_file import encode_checked, iter_blocks
from tidemill.storage.files.disk import Buffer
from tidemill.storage.index.index_blocks import extend_columns, pack_columns
from tidemill.wire.batch import BatchHeader
from tidemill.wire.transaction_marker import TransactionMarker

__all__ = ["AbortedIndex", "AbortedTransaction"]

_KIND = b"ABRT"
_VERSION = 1
_COVERED = Struct("<I")


class AbortedTransaction(NamedTuple):
    """One aborted transaction in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""
    stable_offset: int
    """Every transaction that began below has ended by this marker."""


@final
class AbortedIndex:
    """The entries of one segment; those of a growing segment are only appended to."""

    __slots__ = (
        "_first_offsets",
        "_last_offsets",
        "_producer_ids",
        "_stable_offsets",
        "base_offset",
        "has_markers",
    )

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._producer_ids = array("q")
        self._first_offsets = array("q")
        self._stable_offsets = array("q")
        self._last_offsets = array("q")
        self.has_markers = False
        """Whether the segment has any marker, of whatever outcome."""

    def __len__(self) -> int:
        return len(self._last_offsets)

    def note(self, header: BatchHeader, marker: TransactionMarker) -> None:
        """The segment has this marker. One that is known already changes nothing."""
        self.has_markers = True
        last_offsets = self._last_offsets
        is_known = bool(last_offsets) and header.last_offset <= last_offsets[-1]
        if not marker.aborts_records or is_known:
            return
        self._producer_ids.append(header.producer_id)
        self._first_offsets.append(marker.first_offset)
        self._stable_offsets.append(marker.stable_offset)
        last_offsets.append(header.last_offset)  # last: a thread trusts its length

    def find(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that reach into this range, and whether no later marker ends one that does."""
        found = []
        last_offsets = self._last_offsets
        count = len(last_offsets)
        for entry in range(bisect_left(last_offsets, start_offset, 0, count), count):
            if self._first_offsets[entry] < end_offset:
                found.append(self._entry(entry))
            if self._stable_offsets[entry] >= end_offset:
                return found, True
        return found, False

    def _entry(self, entry: int) -> AbortedTransaction:
        return AbortedTransaction(
            self._producer_ids[entry],
            self._first_offsets[entry],
            self._last_offsets[entry],
            self._stable_offsets[entry],
        )

    def entries(self) -> list[AbortedTransaction]:
        return [self._entry(entry) for entry in range(len(self))]

    def head(self, end_offset: int) -> AbortedIndex:
        """The entries whose markers are below `end_offset`, copied."""
        count = bisect_left(self._last_offsets, end_offset)
        head = AbortedIndex(self.base_offset)
        for column, mine in zip(head._columns(), self._columns(), strict=True):
            column.extend(mine[:count])
        head.has_markers = self.has_markers
        return head

    def encode_from(self, first: int, *, covered: int) -> bytes:
        """A block with the entries from `first` on, to append to the file.

        `covered` is the number of entries of the offset index.
        """
        columns = [column[first:] for column in self._columns()]
        packed = pack_columns(columns, base_offset=self.base_offset, first=first)
        return encode_checked(_KIND, _VERSION, _COVERED.pack(covered) + packed)

    @classmethod
    def decode(cls, data: Buffer, *, base_offset: int, name: str) -> tuple[AbortedIndex, int, int]:
        """As many entries as are whole and in sequence, how many entries of the offset index they
        were stored with, and how many bytes they take.
        """
        index = cls(base_offset)
        covered = used_bytes = 0
        for payload, block_bytes in iter_blocks(data, kind=_KIND, version=_VERSION, name=name):
            body = payload[_COVERED.size :]
            if len(payload) < _COVERED.size or not extend_columns(
                index._columns(), body, base_offset
            ):
                break
            (covered,) = _COVERED.unpack_from(payload)
            used_bytes += block_bytes
            index.has_markers = True
        return index, covered, used_bytes

    def _columns(self) -> tuple[array[int], ...]:
        return self._producer_ids, self._first_offsets, self._stable_offsets, self._last_offsets
