"""Reads a segment in windows of whole batches, for the passes of a cleaning."""

from __future__ import annotations

from tidemill.core.errors import StorageFault
from tidemill.core.limits import MIB
from tidemill.storage.files.disk import DiskFile
from tidemill.wire.batch import CorruptBatch, read_header

__all__ = ["SLICE_BYTES", "read_window"]

SLICE_BYTES = MIB
"""What one slice of a pass reads, about."""
_WINDOW_BYTES = 64 * 1024


def read_window(file: DiskFile, position: int, end: int) -> memoryview:
    """The next bytes of a segment, starting with a whole batch; CorruptBatch if there is none.

    A failed read is damage to this segment, not to the whole disk.
    """
    try:
        data = file.pread(min(_WINDOW_BYTES, end - position), position)
        size_bytes = read_header(data).size_bytes
        if size_bytes > len(data):
            data = file.pread(min(size_bytes, end - position), position)
    except StorageFault as err:
        raise CorruptBatch(str(err)) from err
    if size_bytes > len(data):
        raise CorruptBatch(f"{len(data)} bytes of {size_bytes} at byte {position}")
    return memoryview(data)
