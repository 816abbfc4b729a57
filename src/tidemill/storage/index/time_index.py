"""Time to position in a segment: one timestamp for each entry of the offset index.

`timestamps[i]` is the greatest timestamp of all batches *before* the position that entry i of the
offset index names. It never falls, so the first batch that reaches a time is at or after the last
entry whose timestamp is below that time, and before the next entry.

The file follows the offset index's rules: checked blocks, synced bytes only, never needed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final, final

from tidemill.storage.files.disk import Buffer
from tidemill.storage.index.index_blocks import decode_blocks, encode_block

__all__ = ["TimeIndex"]

_KIND: Final = b"TIDX"


@final
class TimeIndex:
    """Running maximum of the timestamps of one segment."""

    __slots__ = ("base_offset", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps = array("q")

    def __len__(self) -> int:
        return len(self.timestamps)

    def add(self, max_timestamp: int) -> None:
        """Everything before the offset index's newest entry has at most this timestamp."""
        self.timestamps.append(max_timestamp)

    def entry_before(self, timestamp_ms: int) -> int:
        """The last entry before the first batch with this time or a later one; -1 if none."""
        return bisect_left(self.timestamps, timestamp_ms) - 1

    def head(self, count: int) -> TimeIndex:
        """The first `count` entries, copied."""
        head = TimeIndex(self.base_offset)
        head.timestamps = self.timestamps[:count]
        return head

    def encode_from(self, first: int) -> bytes:
        """A block with the entries from `first` on, to append to the file."""
        columns = (self.timestamps[first:],)
        return encode_block(_KIND, columns, base_offset=self.base_offset, first=first)

    @classmethod
    def decode(cls, data: Buffer, *, base_offset: int, name: str) -> tuple[TimeIndex, int]:
        """As many entries as are whole and in sequence, and how many bytes they take."""
        index = cls(base_offset)
        columns = (index.timestamps,)
        used_bytes = decode_blocks(data, columns, kind=_KIND, base_offset=base_offset, name=name)
        return index, used_bytes
