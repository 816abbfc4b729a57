"""`tidemill log`: inspect the log files of a broker that is not running."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import click

from tidemill.cli.record_format import bytes_fact
from tidemill.cli.session import json_option
from tidemill.cli.text import escape, escape_bytes, print_json, print_table
from tidemill.core.errors import StorageFault, UserError
from tidemill.storage.directory.directory_meta import try_parse_partition
from tidemill.storage.files.disk import Disk, DiskFile, OsDisk
from tidemill.storage.files.log_file_names import LOG_SUFFIX, try_parse_offset
from tidemill.storage.recovery.checked_scan import CheckedScan, FoundBatch, try_find_batch_after
from tidemill.wire.batch import BatchHeader
from tidemill.wire.compression import CODEC_NAMES
from tidemill.wire.records import Record, iter_records

__all__ = ["log"]

_LOGS_FOLDER = "logs"


@final
@dataclass(frozen=True, slots=True)
class _Damage:
    """Bytes that are not a valid batch."""

    path: str
    position: int
    next_offset: int
    detail: str


@final
@dataclass(slots=True)
class _SegmentWalk:
    """Iterates over a segment's valid batches; `damage` is complete when the iteration has ended.

    Every checksum is verified. After damage the walk continues at the next complete batch.
    """

    path: str
    base_offset: int
    file: DiskFile
    damage: list[_Damage] = field(default_factory=list)

    def __iter__(self) -> Iterator[FoundBatch]:
        end = self.file.size()
        scan = CheckedScan(self.file, position=0, end=end, next_offset=self.base_offset)
        while True:
            yield from scan
            if scan.damage is None:
                return
            self.damage.append(_Damage(self.path, scan.position, scan.next_offset, scan.damage))
            found = try_find_batch_after(
                self.file, position=scan.position, end=end, next_offset=scan.next_offset
            )
            if found is None:
                return
            scan.skip_to(found)

    def read(self, batch: FoundBatch) -> bytes:
        """The bytes of a batch that the iteration returned."""
        return self.file.pread(batch.header.size_bytes, batch.position)


@click.group()
def log() -> None:
    """Inspect the log files of a broker that is not running."""


@log.command()
@click.argument("directory", metavar="DIR")
@click.option("--records", "with_records", is_flag=True, help="Print keys and values too.")
@json_option
def dump(directory: str, with_records: bool, as_json: bool) -> None:
    """Print the batches in DIR: a data directory, or one partition's.

    Damage is listed after its segment; `log verify` gives the totals.
    """
    disk = OsDisk()
    for partition in _partition_directories(directory):
        for segment in _segments(disk, partition):
            if not as_json:
                click.echo(escape(segment.path))
            for batch in segment:
                _print_batch(segment, batch, with_records=with_records, as_json=as_json)
            for damage in segment.damage:
                _print_damage(damage, as_json=as_json)


@log.command()
@click.argument("directory", metavar="DIR")
@json_option
def verify(directory: str, as_json: bool) -> None:
    """Verify every checksum in DIR: a data directory, or one partition's.

    Exits with 1 if anything is damaged. Changes nothing.
    """
    disk = OsDisk()
    damages: list[_Damage] = []
    results = [_verify(disk, p, damages) for p in _partition_directories(directory)]
    if as_json:
        print_json({"partitions": results, "damage": [_damage_facts(d) for d in damages]})
    else:
        names = ("partition", "segments", "batches", "records", "bytes", "first", "next", "damage")
        rows = [[result[name] for name in names] for result in results]
        print_table([name.upper() for name in names], rows)
        for damage in damages:
            _print_damage(damage, as_json=False)
    if damages:
        raise StorageFault(
            f"damage found, places: {len(damages)}; a replica may still have the records"
        )


def _partition_directories(directory: str) -> list[Path]:
    """The partitions' directories in or at `directory`, by name."""
    root = Path(directory)
    if not root.is_dir():
        raise UserError(f"{directory} is not a directory")
    if any(try_parse_offset(path.name, LOG_SUFFIX) is not None for path in root.iterdir()):
        return [root]
    places = [root, root / _LOGS_FOLDER]
    found = [
        path
        for place in places
        if place.is_dir()
        for path in sorted(place.iterdir())
        if path.is_dir()
        and try_parse_partition(path.name) is not None
        and not (path / _LOGS_FOLDER).is_dir()  # `broker-1` is a data directory of its own
    ]
    if not found:
        raise UserError(
            f"{directory} holds no log; give a data directory or the directory of a partition"
        )
    return found


def _segments(disk: Disk, partition: Path) -> Iterator[_SegmentWalk]:
    """The segments of a partition by offset; each is open while it is yielded."""
    for name in disk.list_names(str(partition)):
        base_offset = try_parse_offset(name, LOG_SUFFIX)
        if base_offset is None:
            continue
        path = str(partition / name)
        file = disk.open(path)
        try:
            yield _SegmentWalk(path, base_offset, file)
        finally:
            file.close()


def _verify(disk: OsDisk, partition: Path, damages: list[_Damage]) -> dict[str, Any]:
    facts: dict[str, Any] = {"partition": partition.name, "segments": 0, "batches": 0}
    facts |= {"records": 0, "bytes": 0, "first": 0, "next": 0, "damage": 0}
    for segment in _segments(disk, partition):
        if facts["segments"] == 0:
            facts["first"] = segment.base_offset
        facts["segments"] += 1
        facts["next"] = segment.base_offset
        for batch in segment:
            facts["batches"] += 1
            facts["records"] += batch.header.record_count
            facts["bytes"] += batch.header.size_bytes
            facts["next"] = batch.header.next_offset
        facts["damage"] += len(segment.damage)
        damages += segment.damage
    return facts


def _print_batch(
    segment: _SegmentWalk, batch: FoundBatch, *, with_records: bool, as_json: bool
) -> None:
    data = segment.read(batch) if with_records else None
    if as_json:
        facts = _batch_facts(segment, batch)
        if data is not None:
            facts["records"] = [_record_facts(r) for r in iter_records(data, batch.header)]
        print_json(facts)
        return
    click.echo(_batch_line(batch))
    if data is not None:
        for record in iter_records(data, batch.header):
            key, value = escape_bytes(record.key, null="-"), escape_bytes(record.value, null="-")
            click.echo(f"    {record.offset} {record.timestamp} {key} {value}")


def _batch_line(batch: FoundBatch) -> str:
    header = batch.header
    producer = ""
    if header.producer_id >= 0:
        producer = f" producer {header.producer_id}/{header.producer_epoch}"
        producer += f" sequence {header.base_sequence}..{header.last_sequence}"
    kinds = (" control" if header.is_control else "") + (
        " transactional" if header.is_transactional else ""
    )
    return (
        f"  {header.base_offset}..{header.last_offset}: {header.record_count} records, "
        f"epoch {header.partition_leader_epoch}, {_codec(header)}, time {header.max_timestamp}, "
        f"byte {batch.position}, {header.size_bytes} bytes{producer}{kinds}"
    )


def _batch_facts(segment: _SegmentWalk, batch: FoundBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "segment": segment.path,
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "size_bytes": header.size_bytes,
        "leader_epoch": header.partition_leader_epoch,
        "codec": _codec(header),
        "max_timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_control": header.is_control,
        "is_transactional": header.is_transactional,
    }


def _record_facts(record: Record) -> dict[str, Any]:
    facts: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp}
    return facts | bytes_fact("key", record.key) | bytes_fact("value", record.value)


def _codec(header: BatchHeader) -> str:
    return CODEC_NAMES.get(header.codec, f"codec {header.codec}")


def _print_damage(damage: _Damage, *, as_json: bool) -> None:
    if as_json:
        print_json(_damage_facts(damage))
    else:
        click.echo(
            f"  damaged: {escape(damage.path)} at byte {damage.position}, "
            f"from offset {damage.next_offset}: {escape(damage.detail)}"
        )


def _damage_facts(damage: _Damage) -> dict[str, Any]:
    return {
        "segment": damage.path,
        "position": damage.position,
        "next_offset": damage.next_offset,
        "damage": damage.detail,
    }
