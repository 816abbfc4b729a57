"""Time to place in a segment: one timestamp for each entry of the offset index.

`timestamps[i]` is the greatest timestamp of all batches *before* the place that entry i of the
offset index names. It never falls, so the first batch that reaches a time lies at or behind the
last entry whose timestamp is below that time, and before the next one.

The file has the offset index's rules: checked blocks, synced bytes only, never needed.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from struct import Struct
from typing import final

from tidemill.storage.files.checked_file import encode_checked, iter_blocks
from tidemill.storage.files.disk import Buffer

__all__ = ["TimeIndex"]

_KIND = b"TIDX"
_VERSION = 1
_BLOCK = Struct("<qII")  # the segment's base offset, index of the block's first entry, entries
_ENTRY_BYTES = 8


@final
class TimeIndex:
    """Running greatest timestamps of one segment."""

    __slots__ = ("base_offset", "timestamps")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps = array("q")

    def __len__(self) -> int:
        return len(self.timestamps)

    def add(self, max_timestamp: int) -> None:
        """Everything before the offset index's newest entry has this timestamp or a lower one."""
        self.timestamps.append(max_timestamp)

    def entry_before(self, timestamp_ms: int) -> int:
        """The last entry behind which the first batch with this time or later lies; -1: none."""
        return bisect_left(self.timestamps, timestamp_ms) - 1

    def head(self, count: int) -> TimeIndex:
        """The first `count` entries, copied."""
        head = TimeIndex(self.base_offset)
        head.timestamps = self.timestamps[:count]
        return head

    def encode_from(self, first: int) -> bytes:
        """A block with the entries from `first` on, to append to the file."""
        head = _BLOCK.pack(self.base_offset, first, len(self) - first)
        tail = self.timestamps[first:]
        if sys.byteorder == "big":
            tail.byteswap()
        return encode_checked(_KIND, _VERSION, head + tail.tobytes())

    @classmethod
    def decode(cls, data: Buffer, *, base_offset: int, name: str) -> tuple[TimeIndex, int]:
        """As many entries as are whole and in sequence, and how many bytes they take."""
        index = cls(base_offset)
        used_bytes = 0
        for payload, block_bytes in iter_blocks(data, kind=_KIND, version=_VERSION, name=name):
            if not index._try_extend(payload):
                break
            used_bytes += block_bytes
        return index, used_bytes

    def _try_extend(self, payload: memoryview) -> bool:
        if len(payload) < _BLOCK.size:
            return False
        base_offset, first, count = _BLOCK.unpack_from(payload)
        body = payload[_BLOCK.size :]
        in_sequence = base_offset == self.base_offset and first == len(self)
        if not in_sequence or len(body) != _ENTRY_BYTES * count:
            return False
        numbers = array("q")
        numbers.frombytes(body)
        if sys.byteorder == "big":
            numbers.byteswap()
        self.timestamps.extend(numbers)
        return True
