"""What a data directory remembers of its logs from one start to the next.

One file for all partitions: up to where each log is known to be on disk (its *recovery point*),
where it starts, and its high watermark. Two generations are kept, written in turn and numbered: a
checkpoint that is lost or damaged costs a longer scan, never an answer. Every number is a lower
bound of the truth, except that a truncation makes a recovery point too high: then the cap file of
the partition, written before the log is cut, lowers it in every checkpoint that was older.

    checkpoint.0, checkpoint.1   checked JSON: [sequence, [[topic, partition, id, numbers...]...]]
    clean-shutdown               the sequence of the checkpoint that a clean end wrote last
    <partition>/recovery-cap     (sequence, offset): checkpoints up to `sequence` know too much
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
from tidemill.storage.files.checked_file import DamagedFile, decode_checked, encode_checked
from tidemill.storage.files.disk import Disk

__all__ = [
    "CAP_NAME",
    "CHECKPOINT_NAMES",
    "CLEAN_NAME",
    "Checkpoint",
    "CheckpointEntry",
    "mark_clean",
    "read_cap",
    "read_newest",
    "take_clean_mark",
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
    """What is remembered of one log."""

    topic_id: TopicId
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    """Of all segments, and below it, the number of producers: a clean start compares them."""
    producers: int


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One generation."""

    sequence: int = 0
    entries: Mapping[TopicPartition, CheckpointEntry] = field(default_factory=dict)

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
        """Read back what `encode` wrote. Raises DamagedFile, UserError."""
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
    """The newest generation that can be read; an empty one if there is none."""
    found = [Checkpoint()]
    for name in CHECKPOINT_NAMES:
        file_path = f"{path}/{name}"
        if not disk.exists(file_path):
            continue
        try:
            found.append(Checkpoint.decode(disk.read_file(file_path), name=file_path))
        except StorageFault:
            continue  # the other generation is older, which only costs time
    return max(found, key=lambda checkpoint: checkpoint.sequence)


def write_generation(disk: Disk, path: str, checkpoint: Checkpoint) -> None:
    """Replace the older generation; the newer one stays readable all the time."""
    name = CHECKPOINT_NAMES[checkpoint.sequence % len(CHECKPOINT_NAMES)]
    disk.write_file_atomically(f"{path}/{name}", checkpoint.encode())


def mark_clean(disk: Disk, path: str, sequence: int) -> None:
    """The last act of a clean end."""
    data = encode_checked(_CLEAN_KIND, _VERSION, _SEQUENCE.pack(sequence))
    disk.write_file_atomically(f"{path}/{CLEAN_NAME}", data)


def take_clean_mark(disk: Disk, path: str) -> int | None:
    """The first act of a start: the mark's sequence, and the mark is gone for good."""
    file_path = f"{path}/{CLEAN_NAME}"
    if not disk.exists(file_path):
        return None
    try:
        payload = decode_checked(
            disk.read_file(file_path), kind=_CLEAN_KIND, version=_VERSION, name=file_path
        )
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


def read_cap(disk: Disk, partition_path: str, *, sequence: int) -> int | None:
    """The offset that a checkpoint of this sequence is capped at; None: it holds as it is."""
    file_path = f"{partition_path}/{CAP_NAME}"
    if not disk.exists(file_path):
        return None
    try:
        payload = decode_checked(
            disk.read_file(file_path), kind=_CAP_KIND, version=_VERSION, name=file_path
        )
        cap_sequence, offset = _CAP.unpack(payload)
    except (StorageFault, StructError):
        return 0  # nothing is known: no checkpoint counts for this log
    return int(offset) if cap_sequence >= sequence else None
