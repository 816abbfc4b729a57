"""A partition whose batches must be read from the disk before they can be sent."""

from __future__ import annotations

from tidemill.storage.log.interface import LogSlice


class ColdLog:
    """Another log, but for its reads: they say how much there is, and `load` brings it."""

    def __init__(self, log, load, *, size_bytes):
        self._log = log
        self._load = load
        self._size_bytes = size_bytes

    def __getattr__(self, name):
        return getattr(self._log, name)

    def read(self, offset, *, max_bytes, end_offset, at_least_one):
        return LogSlice((), min(max_bytes, self._size_bytes), self._load)
