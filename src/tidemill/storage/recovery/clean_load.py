"""The log as a clean shutdown left it, from what the checkpoint says and two small files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.errors import StorageFault
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import SNAPSHOT_SUFFIX, offset_path
from tidemill.storage.log.partition_log import LoadedState
from tidemill.storage.recovery.segment_files import (
    build_segments,
    find_segment_files,
    list_useful_names,
    offsets_in,
    try_read_epochs,
)
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_state import ProducerStates

__all__ = ["CheckpointedLog", "try_load_clean"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedLog:
    """What the last checkpoint says about a log; the defaults if it does not know the log."""

    recovery_point: int = 0
    log_start_offset: int = 0
    size_bytes: int = 0
    """Of all segments. Like the number of producers, it only counts after a clean shutdown."""
    producers: int = 0
    is_capped: bool = False
    """The log was cut or restarted here since the checkpoint: it may end earlier."""


def try_load_clean(
    disk: Disk,
    files: FileCache,
    directory: str,
    checkpointed: CheckpointedLog,
    *,
    index_interval_bytes: int,
) -> LoadedState | None:
    """The log as a clean shutdown left it; None if the files do not agree with the checkpoint.

    A start does this for up to eight thousand logs, so only two small files are opened.
    """
    names = list_useful_names(disk, directory)
    segment_files = find_segment_files(
        disk, directory, names, log_end_offset=checkpointed.recovery_point
    )
    size_bytes = sum(found.size_bytes for found in segment_files)
    if not segment_files or size_bytes != checkpointed.size_bytes:
        return None
    try:
        epochs = try_read_epochs(disk, directory, names)
        producers = ProducerStates()
        if checkpointed.producers:  # counted by `fact_count`
            path = offset_path(directory, checkpointed.recovery_point, SNAPSHOT_SUFFIX)
            producers, _ = ProducerStates.decode(disk.read_file(path), name=path)
    except StorageFault:
        return None
    if producers.fact_count < checkpointed.producers or (
        epochs is None and checkpointed.size_bytes
    ):
        return None
    epochs = LeaderEpochs() if epochs is None else epochs
    epochs.truncate_from_start(checkpointed.log_start_offset)
    return LoadedState(
        segments=build_segments(
            disk, files, directory, segment_files, index_interval_bytes=index_interval_bytes
        ),
        log_start_offset=max(checkpointed.log_start_offset, segment_files[0].base_offset),
        flushed_offset=checkpointed.recovery_point,
        epochs=epochs,
        producers=producers,
        snapshot_offsets=offsets_in(names, SNAPSHOT_SUFFIX),
    )
