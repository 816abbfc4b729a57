"""The side files with what recovery cut off, or mending gave up, and when they are deleted.

They are for an operator who wants to inspect them. They hold records, so they do not outlive the
topic's retention; and they are kept for a week at most.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.errors import StorageFault
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.log_file_names import LOST_SUFFIX
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.recovery.tail_cut import CUT_INFIX

__all__ = ["CUT_FILE_MS_MAX", "purge_cut_files"]

CUT_FILE_MS_MAX = 7 * 24 * 3600 * 1000


def purge_cut_files(disk: Disk, logs: Iterable[tuple[str, LogConfig]], now_ms: int) -> int:
    """Unlink the side files of these logs that are too old; the number unlinked. For `Disk.run`.

    A log may be deleted meanwhile: the next pass looks at what cannot be read now.
    """
    return sum(_purge_one(disk, directory, now_ms - _kept_ms(config)) for directory, config in logs)


def _kept_ms(config: LogConfig) -> int:
    by_age = config.deletes and config.retention_ms >= 0
    return min(CUT_FILE_MS_MAX, config.retention_ms) if by_age else CUT_FILE_MS_MAX


def _purge_one(disk: Disk, directory: str, oldest_ms: int) -> int:
    purged = 0
    try:
        for name in disk.list_names(directory):
            path = f"{directory}/{name}"
            is_side_file = CUT_INFIX in name or name.endswith(LOST_SUFFIX)
            if is_side_file and disk.changed_ms(path) < oldest_ms:
                disk.unlink(path)
                purged += 1
    except StorageFault:
        return purged
    return purged
