"""What partitions ask of the flusher of their data directory."""

from __future__ import annotations

from typing import Protocol

from tidemill.storage.log.interface import PartitionLog

__all__ = ["FlushRequests"]


class FlushRequests(Protocol):
    """What a partition asks of the flusher of its data directory."""

    def appended(self, log: PartitionLog, size_bytes: int, *, ack_waits: bool) -> None:
        """The log grew. It is flushed in the next round if `ack_waits`, else by its own rules."""
        ...

    def request(self, log: PartitionLog) -> None:
        """Flush everything that this log holds now in the next round."""
        ...
