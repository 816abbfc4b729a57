"""HOT PATH. The checks, and the blocking cut, that the file log and the memory log share."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.errors import ErrorCode, KafkaError, invariant
from tidemill.storage.log.interface import LogCut
from tidemill.wire.batch import LOG_OVERHEAD_BYTES, BatchHeader

__all__ = ["check_order", "check_readable", "check_start", "cut_now"]


def check_order(headers: Sequence[BatchHeader], *, next_offset: int, leader_epoch: int) -> int:
    """The size of the batches to append. Batches out of order would make the log unreadable."""
    size_bytes = 0
    for header in headers:
        invariant(header.base_offset >= next_offset, "offsets of appended batches must rise")
        invariant(header.partition_leader_epoch >= leader_epoch, "leader epochs must not fall")
        next_offset = header.base_offset + header.last_offset_delta + 1
        leader_epoch = header.partition_leader_epoch
        size_bytes += LOG_OVERHEAD_BYTES + header.batch_length
    return size_bytes


def check_readable(offset: int, *, log_start_offset: int, log_end_offset: int) -> None:
    """Raises KafkaError OFFSET_OUT_OF_RANGE for an offset outside the log."""
    if not log_start_offset <= offset <= log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{offset} is not in {log_start_offset}..{log_end_offset}",
        )


def check_start(offset: int, *, log_end_offset: int) -> None:
    """Raises KafkaError OFFSET_OUT_OF_RANGE for a log start after the log's end."""
    if offset > log_end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is behind {log_end_offset}")


def cut_now(cut: LogCut | None) -> None:
    """All steps of a cut, in one call that blocks."""
    if cut is None:
        return
    cut.read()
    while not cut.begin():
        cut.read()
    cut.perform()
    cut.end()
