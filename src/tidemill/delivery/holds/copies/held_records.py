"""Reads held records out of a stored batch. Opens single records."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.wire.batch import BatchHeader
from tidemill.wire.records import Record, iter_records

__all__ = ["read_held"]


def read_held(
    batch: bytes | bytearray | memoryview, header: BatchHeader, offsets: Collection[int]
) -> list[Record]:
    """The records with these offsets, with the times that their producer gave them."""
    found: list[Record] = []
    highest: int | None = None
    for record in iter_records(batch, header):
        highest = record.timestamp if highest is None else max(highest, record.timestamp)
        if record.offset in offsets:
            found.append(record)
    # The stamp has taken the place of the base, so all times are off by the same amount. The max
    # timestamp is not.
    for record in found:
        assert highest is not None
        record.timestamp += header.max_timestamp - highest
    return found
