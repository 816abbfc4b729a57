"""The skip batch: moves the position of a reader over nothing.

What a filter leaves out is not in the answer, so nothing there tells a client how far its position
may go. All clients pass control batches, and none shows them to its application: a skip batch is
one, with a whole COMMIT record at the last offset that was looked at, from no producer. It has a
record because kafkajs does not move past a batch without one, and asks for the same again, without
a pause.
"""

from __future__ import annotations

from struct import Struct

from tidemill.hot.record_encode import encode
from tidemill.wire.batch import CONTROL, HEADER_BYTES, NO_TIMESTAMP, write_header

__all__ = ["skip_batch"]

_COMMIT_KEY = Struct(">hh").pack(0, 1)  # version, type: 1 is a commit
_COMMIT_VALUE = Struct(">hi").pack(0, 0)  # version, coordinator epoch
_RECORD = bytes(encode([(0, 0, _COMMIT_KEY, _COMMIT_VALUE, [])]))


def skip_batch(offset: int, *, leader_epoch: int) -> bytes:
    """The batch after which a reader's position is `offset + 1`.

    `leader_epoch` is that of the last batch that was looked at: clients check their position by it.
    """
    out = bytearray(HEADER_BYTES) + _RECORD
    write_header(
        out,
        record_count=1,
        last_offset_delta=0,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        attributes=CONTROL,
        base_offset=offset,
        leader_epoch=leader_epoch,
    )
    return bytes(out)
