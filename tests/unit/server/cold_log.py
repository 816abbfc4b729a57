"""A partition whose batches must be read from the disk before they can be sent."""

from __future__ import annotations

from tidemill.storage.log.interface import LogSlice


class ColdLog:
    """Wraps a log; a read returns the size at once, and `load` returns the bytes later."""

    def __init__(self, log, load, *, size_bytes):
        self._log = log
        self._load = load
        self._size_bytes = size_bytes

    def __getattr__(self, name):
        return getattr(self._log, name)

    def read(self, offset, *, max_bytes, end_offset, at_least_one):
        return LogSlice((), min(max_bytes, self._size_bytes), self._load)
