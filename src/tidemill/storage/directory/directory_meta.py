"""Which broker a data directory belongs to, and which topic a partition directory belongs to.

`meta` names the cluster, the broker and the directory itself: a disk that was moved to another
machine, or the directory of another cluster, is refused (S47). `partition` in each partition's
directory names the topic id: the files of a deleted topic are never served under a re-created name
(I34).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import final
from uuid import UUID

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicId, TopicPartition, is_legal_topic_name
from tidemill.core.rng import Rng
from tidemill.storage.files.checked_file import DamagedFile, encode_checked, read_checked
from tidemill.storage.files.disk import Disk, DiskFile

__all__ = [
    "META_NAME",
    "PARTITION_NAME",
    "DirectoryMeta",
    "claim_directory",
    "create_topic_id",
    "owning_cluster",
    "read_meta",
    "try_parse_partition",
    "try_read_topic_id",
    "write_topic_id",
]

META_NAME = "meta"
PARTITION_NAME = "partition"

_META_KIND = b"META"
_PARTITION_KIND = b"PART"
_VERSION = 1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryMeta:
    """The content of `meta`."""

    cluster_id: str
    broker_id: int
    directory_id: UUID


def claim_directory(
    disk: Disk, path: str, *, cluster_id: str, broker_id: int, rng: Rng
) -> DirectoryMeta:
    """Check that a directory is this broker's, or claim a new one."""
    meta_path = f"{path}/{META_NAME}"
    if disk.exists(meta_path):
        meta = read_meta(disk, path)
        _check_owner(meta, path, cluster_id, broker_id)
        return meta
    foreign = [name for name in disk.list_names(path) if not _is_expected_in_new_directory(name)]
    if foreign:
        raise UserError(
            f"{path} has no {META_NAME} file but is not empty (it has {foreign[0]}): "
            "choose an empty data directory, or put the file back"
        )
    meta = DirectoryMeta(cluster_id=cluster_id, broker_id=broker_id, directory_id=rng.uuid())
    disk.write_file_atomically(meta_path, _encode_meta(meta))
    return meta


def owning_cluster(disk: Disk, path: str) -> str:
    """The id of the cluster that has claimed a directory; empty if none has."""
    return read_meta(disk, path).cluster_id if disk.exists(f"{path}/{META_NAME}") else ""


def read_meta(disk: Disk, path: str) -> DirectoryMeta:
    """The directory's `meta`. Raises UserError: without it the data's owner is unknown."""
    meta_path = f"{path}/{META_NAME}"
    try:
        payload = read_checked(disk, meta_path, kind=_META_KIND, version=_VERSION)
        fields = json.loads(bytes(payload))
        return DirectoryMeta(
            cluster_id=str(fields["cluster_id"]),
            broker_id=int(fields["broker_id"]),
            directory_id=UUID(fields["directory_id"]),
        )
    except (DamagedFile, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{meta_path} is damaged ({error}): restore it from a backup") from error


def write_topic_id(disk: Disk, directory: str, topic_id: TopicId) -> None:
    """Write the topic id of a partition's directory, which may already have one."""
    disk.write_file_atomically(f"{directory}/{PARTITION_NAME}", _encode_topic_id(topic_id))


def create_topic_id(disk: Disk, directory: str, topic_id: TopicId) -> DiskFile:
    """Write the topic id of a new directory; the file is open and not synced yet."""
    file = disk.open(f"{directory}/{PARTITION_NAME}", create=True)
    file.pwrite([_encode_topic_id(topic_id)], 0)
    return file


def try_read_topic_id(disk: Disk, directory: str) -> TopicId | None:
    """The topic that these files belong to; None if the file is missing or damaged."""
    path = f"{directory}/{PARTITION_NAME}"
    if not disk.exists(path):
        return None
    try:
        payload = read_checked(disk, path, kind=_PARTITION_KIND, version=_VERSION)
        return TopicId(UUID(bytes=bytes(payload)))
    except (DamagedFile, ValueError):
        return None


def try_parse_partition(name: str) -> TopicPartition | None:
    """`orders-3` is partition 3 of `orders`; None for any other kind of name."""
    topic, _, number = name.rpartition("-")
    if not number.isascii() or not number.isdecimal() or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number)) if is_legal_topic_name(topic) else None


def _is_expected_in_new_directory(name: str) -> bool:
    """What an interrupted first start leaves behind, and what a new volume contains."""
    return name.startswith(".") or name == f"{META_NAME}.tmp" or name == "lost+found"


def _check_owner(meta: DirectoryMeta, path: str, cluster_id: str, broker_id: int) -> None:
    if meta.cluster_id != cluster_id:
        raise UserError(
            f"{path} belongs to cluster {meta.cluster_id}, this broker to {cluster_id}: "
            "start it with the data directory of its own cluster"
        )
    if meta.broker_id != broker_id:
        raise UserError(
            f"{path} belongs to broker {meta.broker_id}, this is broker {broker_id}: "
            "start it with its own data directory or with the id that the directory has"
        )


def _encode_topic_id(topic_id: TopicId) -> bytes:
    return encode_checked(_PARTITION_KIND, _VERSION, topic_id.bytes)


def _encode_meta(meta: DirectoryMeta) -> bytes:
    fields = {
        "cluster_id": meta.cluster_id,
        "broker_id": meta.broker_id,
        "directory_id": str(meta.directory_id),
    }
    return encode_checked(_META_KIND, _VERSION, json.dumps(fields, sort_keys=True).encode())
