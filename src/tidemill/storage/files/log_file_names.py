"""The names of a log's files. Offsets have twenty digits, so that names sort as offsets do.

NNNNNNNNNNNNNNNNNNNN.log         batches, from offset N on
NNNNNNNNNNNNNNNNNNNN.index       offset -> position, sparse; may be lost
NNNNNNNNNNNNNNNNNNNN.timeindex   time -> entry of the offset index; may be lost
NNNNNNNNNNNNNNNNNNNN.txnindex    aborted transactions with their marker in the segment; may be lost
NNNNNNNNNNNNNNNNNNNN.snapshot    the producers' state after all records below offset N
NNNNNNNNNNNNNNNNNNNN.holds       the held records after all below offset N; may be lost
NNNNNNNNNNNNNNNNNNNN.holdrun     sorted held records, run number N (`hold_files`); may be lost
leader-epochs                    which epoch began at which offset
clean-point                      compaction has seen everything below this offset; may be lost
damage                           offsets that are damaged; there is none where nothing is
NNNNNNNNNNNNNNNNNNNN.lost        damaged bytes that were given up, for a person; never read again
N-M.swap                         replaces the segments from N up to M (`segment_swap`)
*.cleaned                        compaction had not finished it; of no value
*.deleted                        removed from the log, waits to be unlinked; never read again
*.tmp                            half written when the process ended; of no value
"""

from __future__ import annotations

__all__ = [
    "ABORTED_INDEX_SUFFIX",
    "CLEANED_SUFFIX",
    "CLEAN_POINT_NAME",
    "DAMAGE_NAME",
    "DELETED_SUFFIX",
    "HOLD_RUN_SUFFIX",
    "HOLD_SNAPSHOT_SUFFIX",
    "INDEX_SUFFIX",
    "LEADER_EPOCHS_NAME",
    "LOG_SUFFIX",
    "LOST_SUFFIX",
    "SNAPSHOT_SUFFIX",
    "SWAP_SUFFIX",
    "TEMPORARY_SUFFIX",
    "TIME_INDEX_SUFFIX",
    "offset_path",
    "swap_path",
    "try_parse_offset",
    "try_parse_swap",
]

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
ABORTED_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
HOLD_SNAPSHOT_SUFFIX = ".holds"
HOLD_RUN_SUFFIX = ".holdrun"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LOST_SUFFIX = ".lost"
CLEAN_POINT_NAME = "clean-point"
DAMAGE_NAME = "damage"
LEADER_EPOCHS_NAME = "leader-epochs"

_DIGITS = 20


def offset_path(directory: str, offset: int, suffix: str) -> str:
    """The path of the file named after `offset`."""
    return f"{directory}/{offset:0{_DIGITS}d}{suffix}"


def swap_path(directory: str, base_offset: int, next_offset: int) -> str:
    """The path of a file that replaces all segments between the two offsets."""
    return f"{directory}/{base_offset:0{_DIGITS}d}-{next_offset:0{_DIGITS}d}{SWAP_SUFFIX}"


def try_parse_swap(name: str) -> tuple[int, int] | None:
    """The two offsets in the name of a swap file, or None for any other name."""
    first, _, second = name.removesuffix(SWAP_SUFFIX).partition("-")
    if not name.endswith(SWAP_SUFFIX):
        return None
    base_offset, next_offset = try_parse_offset(first, ""), try_parse_offset(second, "")
    return None if base_offset is None or next_offset is None else (base_offset, next_offset)


def try_parse_offset(name: str, suffix: str) -> int | None:
    """The offset in a file's name, or None if the name is not of this kind."""
    stem = name.removesuffix(suffix)
    is_one = name.endswith(suffix) and len(stem) == _DIGITS and stem.isascii() and stem.isdigit()
    return int(stem) if is_one else None
