"""What a data directory remembers about its logs from one start to the next.

One file for all partitions: up to which offset each log is known to be on disk (its *recovery
point*), where it starts, and its high watermark. Two generations are kept, written in turn and
numbered: a lost or damaged checkpoint costs a longer scan, never a wrong answer. Every number is a
lower bound, with one exception: a truncation can leave a recovery point too high. For that the
partition has a cap file, written before the log is cut; it lowers the point in older checkpoints.

    checkpoint.0, checkpoint.1   checked JSON: [sequence, [[topic, partition, id, numbers...]...]]
    clean-shutdown               the sequence of the last checkpoint of a clean shutdown
    <partition>/recovery-cap     (sequence, offset): checkpoints up to `sequence` claim too much
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import final
from uuid import UUID

from tidemill.core.errors import StorageFault
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.storage.files.checked_file import (
    DamagedFile,
    decode_checked,
    encode_checked,
    read_checked,
)
from tidemill.storage.files.disk import Disk

__all__ = [
    "CAP_NAME",
    "CHECKPOINT_NAMES",
    "CLEAN_NAME",
    "Checkpoint",
    "CheckpointEntry",
    "mark_clean",
    "place_of",
    "read_generations",
    "read_newest",
    "try_read_cap",
    "try_take_clean_mark",
    "write_cap",
    "write_generation",
]

CHECKPOINT_NAMES = ("checkpoint.0", "checkpoint.1")
CLEAN_NAME = "clean-shutdown"
CAP_NAME = "recovery-cap"

_CHECKPOINT_KIND = b"CKPT"
_CLEAN_KIND = b"CLEN"
_CAP_KIND = b"RCAP"
_VERSION = 1
_SEQUENCE = Struct(">q")
_CAP = Struct(">qq")  # sequence of the newest checkpoint it corrects, the offset


@final
@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """What is remembered about one log."""

    topic_id: TopicId
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    """Of all segments. A clean start compares it, and the number of producers below."""
    producers: int


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One generation."""

    sequence: int = 0
    entries: Mapping[TopicPartition, CheckpointEntry] = field(default_factory=dict)

    def names(self, partition: TopicPartition, topic_id: TopicId) -> bool:
        entry = self.entries.get(partition)
        return entry is not None and entry.topic_id == topic_id

    def encode(self) -> bytes:
        rows = [
            [
                partition.topic,
                partition.partition,
                entry.topic_id.hex,
                entry.recovery_point,
                entry.log_start_offset,
                entry.high_watermark,
                entry.size_bytes,
                entry.producers,
            ]
            for partition, entry in self.entries.items()
        ]
        payload = json.dumps([self.sequence, rows], separators=(",", ":")).encode()
        return encode_checked(_CHECKPOINT_KIND, _VERSION, payload)

    @classmethod
    def decode(cls, data: bytes, *, name: str) -> Checkpoint:
        """Read what `encode` wrote. Raises DamagedFile, UserError."""
        payload = decode_checked(data, kind=_CHECKPOINT_KIND, version=_VERSION, name=name)
        try:
            sequence, rows = json.loads(bytes(payload))
            entries = {
                TopicPartition(topic, partition): CheckpointEntry(
                    TopicId(UUID(hex=topic_id)), *numbers
                )
                for topic, partition, topic_id, *numbers in rows
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedFile(f"{name}: {error}") from error
        return cls(sequence, entries)


def read_newest(disk: Disk, path: str) -> Checkpoint:
    """The newest readable generation; an empty one if there is none."""
    return max(read_generations(disk, path), key=lambda checkpoint: checkpoint.sequence)


def read_generations(disk: Disk, path: str) -> list[Checkpoint]:
    """What each of the two files says; an empty one if it is not there or cannot be read."""
    return [_read_generation(disk, f"{path}/{name}") for name in CHECKPOINT_NAMES]


def _read_generation(disk: Disk, file_path: str) -> Checkpoint:
    if not disk.exists(file_path):
        return Checkpoint()
    try:
        return Checkpoint.decode(disk.read_file(file_path), name=file_path)
    except StorageFault:
        return Checkpoint()  # the other generation is older, which only costs time


def place_of(checkpoint: Checkpoint) -> int:
    """Which of the two files a generation is written to: the one with the older generation."""
    return checkpoint.sequence % len(CHECKPOINT_NAMES)


def write_generation(disk: Disk, path: str, checkpoint: Checkpoint) -> None:
    """Replace the older generation; the newer one stays readable throughout."""
    name = CHECKPOINT_NAMES[place_of(checkpoint)]
    disk.write_file_atomically(f"{path}/{name}", checkpoint.encode())


def mark_clean(disk: Disk, path: str, sequence: int) -> None:
    """The last step of a clean shutdown."""
    data = encode_checked(_CLEAN_KIND, _VERSION, _SEQUENCE.pack(sequence))
    disk.write_file_atomically(f"{path}/{CLEAN_NAME}", data)


def try_take_clean_mark(disk: Disk, path: str) -> int | None:
    """The first step of a start: remove the mark for good and return its sequence."""
    file_path = f"{path}/{CLEAN_NAME}"
    if not disk.exists(file_path):
        return None
    try:
        payload = read_checked(disk, file_path, kind=_CLEAN_KIND, version=_VERSION)
        sequence: int | None = _SEQUENCE.unpack(payload)[0]
    except (StorageFault, StructError):
        sequence = None
    disk.unlink(file_path)
    disk.sync_directory(path)
    return sequence


def write_cap(disk: Disk, partition_path: str, *, sequence: int, offset: int) -> None:
    """Before a log is cut to `offset`: no checkpoint up to `sequence` may claim more."""
    data = encode_checked(_CAP_KIND, _VERSION, _CAP.pack(sequence, offset))
    disk.write_file_atomically(f"{partition_path}/{CAP_NAME}", data)


def try_read_cap(disk: Disk, partition_path: str, *, sequence: int) -> int | None:
    """The offset that caps a checkpoint of this sequence; None if the checkpoint holds as it is."""
    file_path = f"{partition_path}/{CAP_NAME}"
    if not disk.exists(file_path):
        return None
    try:
        payload = read_checked(disk, file_path, kind=_CAP_KIND, version=_VERSION)
        cap_sequence, offset = _CAP.unpack(payload)
    except (StorageFault, StructError):
        return 0  # nothing is known: no checkpoint counts for this log
    return int(offset) if cap_sequence >= sequence else None
