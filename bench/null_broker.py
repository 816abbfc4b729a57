"""Tidemill without its work: batches are acknowledged (acks=1) unseen and never kept.

What is left is the wire, the event loop and the driver. Side by side with a real broker it tells
about how fast the driver lets any broker be on that machine.

    python -m bench.null_broker up --listen HOST:PORT --data-dir DIR
"""

from __future__ import annotations

from struct import Struct
from unittest import mock

from tidemill.cli.main import main as tidemill
from tidemill.replication.partition import Appended, Partition

__all__ = ["main"]

_RECORD_COUNT = Struct(">i")
_RECORD_COUNT_AT = 57


def main() -> None:
    next_offsets: dict[Partition, int] = {}

    def append(partition: Partition, records: memoryview, **_: int) -> Appended:
        (count,) = _RECORD_COUNT.unpack_from(records, _RECORD_COUNT_AT)
        base_offset = next_offsets.get(partition, 0)
        next_offsets[partition] = base_offset + count
        return Appended(base_offset, base_offset + count, -1)

    with mock.patch.object(Partition, "append", append):
        tidemill()


if __name__ == "__main__":
    main()
