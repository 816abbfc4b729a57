"""What a start found out about the logs: for log lines, metrics and the console."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from tidemill.core.ids import TopicPartition
from tidemill.storage.journal.journal_replay import Replayed

__all__ = ["CutTail", "Damage", "PartitionReport", "RecoveryReport"]


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes below the recovery point that are not what was flushed. They are never cut."""

    path: str
    position: int
    next_offset: int
    """The first offset that cannot be read."""
    detail: str


@final
@dataclass(frozen=True, slots=True)
class CutTail:
    """The bytes that recovery took off the end of a log."""

    offset: int
    """The log ends here now."""
    size_bytes: int
    detail: str
    """What was wrong with the first batch that was cut."""
    kept_in: tuple[str, ...]
    """Paths of the side files; a tail of zeros is not kept."""


@final
@dataclass(slots=True)
class PartitionReport:
    """The recovery of one log."""

    scanned_bytes: int = 0
    cut: CutTail | None = None
    damage: list[Damage] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    """Files that were lost, damaged or out of date, and were rebuilt from the log."""
    is_suspect: bool = False
    """Data that once was durable may be missing: flushed bytes are damaged or gone, or a valid
    batch was after the cut."""

    @property
    def is_noteworthy(self) -> bool:
        return self.is_suspect or self.cut is not None or bool(self.damage or self.rebuilt)


@final
@dataclass(slots=True)
class RecoveryReport:
    """The recovery of all logs of a directory. Logs in good order are only counted."""

    was_clean: bool = False
    replayed: Replayed = field(default_factory=Replayed)
    """What the journal had for the logs."""
    logs_loaded: int = 0
    scanned_bytes: int = 0
    cut_bytes: int = 0
    partitions: dict[TopicPartition, PartitionReport] = field(default_factory=dict)
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    """Logs that could not be loaded, and why. They are not served, and nothing was deleted."""

    @property
    def suspects(self) -> list[TopicPartition]:
        return [partition for partition, report in self.partitions.items() if report.is_suspect]

    def add(self, partition: TopicPartition, report: PartitionReport) -> None:
        self.logs_loaded += 1
        self.scanned_bytes += report.scanned_bytes
        self.cut_bytes += report.cut.size_bytes if report.cut is not None else 0
        if report.is_noteworthy:
            self.partitions[partition] = report

    def lines(self) -> list[str]:
        """One line for each thing an operator should know."""
        lines = [f"{partition}: not loaded: {why}" for partition, why in self.failed.items()]
        if self.replayed.lost_blocks:
            lines.append(
                f"the flush journal was damaged, {self.replayed.lost_blocks} of its blocks are "
                "lost: the newest acknowledged records may be missing, compare with replicas"
            )
        for partition, report in self.partitions.items():
            if report.cut is not None:
                kept = ", ".join(report.cut.kept_in) or "nowhere: only zeros"
                lines.append(
                    f"{partition}: cut at offset {report.cut.offset}, {report.cut.size_bytes} "
                    f"bytes ({report.cut.detail}); kept in {kept}"
                )
            lines += [
                f"{partition}: damage in flushed data at offset {damage.next_offset}, "
                f"{damage.path} byte {damage.position}: {damage.detail}"
                for damage in report.damage
            ]
            if report.rebuilt:
                lines.append(f"{partition}: rebuilt {', '.join(report.rebuilt)}")
            if report.is_suspect:
                lines.append(f"{partition}: suspect, compare it with its replicas")
        return lines
