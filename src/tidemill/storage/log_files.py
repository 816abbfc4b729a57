"""The names of a log's files. Offsets have twenty digits, so that names sort as offsets do.

NNNNNNNNNNNNNNNNNNNN.log         batches, from offset N on
NNNNNNNNNNNNNNNNNNNN.index       offset -> position, sparse; may be lost
NNNNNNNNNNNNNNNNNNNN.timeindex   time -> entry of the offset index; may be lost
NNNNNNNNNNNNNNNNNNNN.snapshot    the producers after everything below offset N
leader-epochs                    which epoch began at which offset
*.deleted                        on its way out; never read again
*.tmp                            half written when the process ended; of no value
"""

from __future__ import annotations

__all__ = [
    "DELETED_SUFFIX",
    "INDEX_SUFFIX",
    "LEADER_EPOCHS_NAME",
    "LOG_SUFFIX",
    "SNAPSHOT_SUFFIX",
    "TEMPORARY_SUFFIX",
    "TIME_INDEX_SUFFIX",
    "offset_path",
    "try_parse_offset",
]

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"
LEADER_EPOCHS_NAME = "leader-epochs"

_DIGITS = 20


def offset_path(directory: str, offset: int, suffix: str) -> str:
    """The path of the file that is named after `offset`."""
    return f"{directory}/{offset:0{_DIGITS}d}{suffix}"


def try_parse_offset(name: str, suffix: str) -> int | None:
    """The offset in a file's name, or None where the name is not one of this kind."""
    stem = name.removesuffix(suffix)
    is_one = name.endswith(suffix) and len(stem) == _DIGITS and stem.isascii() and stem.isdigit()
    return int(stem) if is_one else None
