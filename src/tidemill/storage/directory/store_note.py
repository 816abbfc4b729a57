"""Where the metadata of a data directory is: `store` in it names the ZooKeeper, if it is one.

Without the file it is the embedded store. A broker that is started on the wrong one would find no
topics there and take its logs for strays, so it is refused before it does anything.
"""

from __future__ import annotations

from tidemill.core.errors import UserError
from tidemill.storage.directory.directory_meta import META_NAME, read_meta
from tidemill.storage.files.disk import Disk

__all__ = ["check_store", "forget_store", "note_store", "try_read_store"]

STORE_NAME = "store"
_ZOOKEEPER = "zookeeper"
_LENGTH_MAX = 4096


def try_read_store(disk: Disk, data_dir: str) -> str | None:
    """HOSTS/NODE of the ZooKeeper that this directory belongs to; None: the embedded store."""
    path = f"{data_dir}/{STORE_NAME}"
    if not disk.exists(path):
        return None
    text = disk.read_file(path)[:_LENGTH_MAX].decode(errors="replace").strip()
    kind, _, connect = text.partition(" ")
    if kind != _ZOOKEEPER or not connect:
        raise UserError(f"{path} is damaged: expected `{_ZOOKEEPER} HOSTS/NODE`")
    return connect


def check_store(
    disk: Disk, data_dir: str, logs: str, *, connect: str, store_path: str | None = None
) -> None:
    """Refuse a directory whose metadata is elsewhere; `connect` is empty for the embedded store.

    `store_path`: the file of the embedded store, if it is one, which logs do not come without.
    """
    noted = try_read_store(disk, data_dir)
    if noted is not None and not connect:
        raise UserError(
            f"{data_dir} belongs to a cluster in ZooKeeper: start it with --zookeeper {noted}"
        )
    if connect and noted is None and disk.exists(f"{logs}/{META_NAME}"):
        raise UserError(
            f"{data_dir} has its metadata in the embedded store: move it first, with "
            f"`tidemill cluster migrate --data-dir {data_dir} --zookeeper {connect}`"
        )

    if not connect and store_path and disk.exists(f"{logs}/{META_NAME}"):
        _check_embedded(disk, data_dir, logs, store_path)


def _check_embedded(disk: Disk, data_dir: str, logs: str, store_path: str) -> None:
    """UserError if the store is gone: a new one would be empty, and hide what is missing."""
    if disk.exists(store_path):
        return
    meta = read_meta(disk, logs)
    root, _, name = data_dir.rstrip("/").rpartition("/")
    shared = f"{root or '.'}/{store_path.rpartition('/')[2]}"
    line = f"{logs} belongs to cluster {meta.cluster_id}, but its store {store_path} is gone"
    if name == f"broker-{meta.broker_id}" and disk.exists(shared):
        raise UserError(
            f"{line}: this is one of the brokers that `tidemill up --brokers "
            f"{meta.broker_id + 1} --data-dir {root or '.'}` starts, or more of them"
        )
    raise UserError(f"{line}: put it back, then start the broker again")


def note_store(disk: Disk, data_dir: str, connect: str) -> None:
    """Remember the ZooKeeper; its hosts may be others than the last time."""
    if try_read_store(disk, data_dir) != connect:
        disk.write_file_atomically(f"{data_dir}/{STORE_NAME}", f"{_ZOOKEEPER} {connect}\n".encode())


def forget_store(disk: Disk, data_dir: str) -> None:
    """The metadata is in the embedded store from now on."""
    if disk.exists(f"{data_dir}/{STORE_NAME}"):
        disk.unlink(f"{data_dir}/{STORE_NAME}")
        disk.sync_directory(data_dir)
