"""A file log of small segments on a simulated disk."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.batches import (
    batch,
)
from tidemill.storage.files.file_cache import FileCache
from tidemill.storage.files.log_file_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, try_parse_offset
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.partition_log import FilePartitionLog, LoadedState
from tidemill.storage.log.segment import Segment
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.producer_snapshots import ProducerSnapshots
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.testing.sim.disk import SimDisk

PATH = "/data/topic-0"
SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)
BATCHES_PER_SEGMENT = 300 // len(batch(0))


def new_log(
    disk: SimDisk, config: LogConfig = SMALL, *, before_cut: Callable[[int], None] | None = None
) -> FilePartitionLog:
    return FilePartitionLog.create(disk, FileCache(disk), PATH, config, before_cut=before_cut)


def reopened(disk: SimDisk, log: FilePartitionLog) -> FilePartitionLog:
    """The log as the next process finds it after a clean shutdown."""
    files = FileCache(disk)
    names = disk.list_names(PATH)
    bases = [try_parse_offset(name, LOG_SUFFIX) for name in names]
    bases = sorted(base for base in bases if base is not None)
    ends = [*bases[1:], log.log_end_offset]
    segments = [
        Segment(
            disk,
            files,
            PATH,
            base_offset=base,
            size_bytes=disk.size(f"{PATH}/{base:020d}.log"),
            next_offset=end,
            index_interval_bytes=100,
            is_closed=base != bases[-1],
        )
        for base, end in zip(bases, ends, strict=True)
    ]
    stored = [try_parse_offset(name, SNAPSHOT_SUFFIX) for name in names]
    snapshot_offsets = [offset for offset in stored if offset is not None]
    snapshots = ProducerSnapshots(disk, PATH, snapshot_offsets)
    found = snapshots.try_load_newest(log.log_end_offset)
    state = LoadedState(
        segments=segments,
        log_start_offset=log.log_start_offset,
        flushed_offset=log.log_end_offset,
        epochs=LeaderEpochs.decode(disk.read_file(f"{PATH}/leader-epochs")),
        producers=found[0] if found is not None else ProducerStates(),
        snapshot_offsets=snapshot_offsets,
    )
    return FilePartitionLog(disk, files, PATH, log.config, state)


def checkpoint(log: FilePartitionLog) -> None:
    point = log.progress.take_checkpoint()
    assert point is not None
    point.sync()
    log.flushed(point)


def recorded(disk: SimDisk) -> list[tuple[str, str]]:
    """The changing calls from now on: name and path within the log."""
    calls: list[tuple[str, str]] = []
    disk.on_call = lambda _, call, path: calls.append((call, path.removeprefix(PATH).lstrip("/")))
    return calls


def names(disk: SimDisk, suffix: str = "") -> list[str]:
    return [name for name in disk.list_names(PATH) if name.endswith(suffix)]
