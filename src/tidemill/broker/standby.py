"""A stand-by: waits until the data directory of another broker is free, then takes its place (F85).

The directory is on storage that both hosts reach. Its lock says who may write: it is free when the
other process has ended, or when the storage has decided that its host is gone. The stand-by keeps
the lock from the moment it gets it, and starts as that broker does after a crash: with the same id,
the same directory, and new leader epochs.

The lock is as good as the storage. What keeps a host that was thought dead from writing to files is
the storage's fencing, not this: epochs guard acknowledgements, not files.
"""

from __future__ import annotations

import asyncio
import logging

from tidemill.broker.data_plane import LOGS_DIRECTORY
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.errors import UserError
from tidemill.metadata.store.local_disk import try_find_foreign
from tidemill.storage.directory.log_directory import LOCK_NAME
from tidemill.storage.files.disk import Disk, DiskFile, OsDisk

__all__ = ["take_directory"]

log = logging.getLogger(__name__)

POLL_S = 0.5


async def take_directory(config: BrokerConfig, disk: Disk | None = None) -> DiskFile:
    """Wait for the lock of the data directory; it is held from then on.

    UserError if no broker has used the directory: perhaps the storage is not there.
    """
    disk = disk or OsDisk()
    path = f"{config.data_dir}/{LOGS_DIRECTORY}/{LOCK_NAME}"
    if not await disk.run(lambda: disk.exists(path)):
        raise UserError(
            f"--standby: no broker has used {config.data_dir} yet; is its storage mounted here? "
            "Start the first broker without --standby"
        )
    foreign = await disk.run(lambda: try_find_foreign(config.data_dir))
    if foreign is not None:
        log.warning(
            "%s is on a file system of type %s: its locks must hold between hosts, "
            "or this broker takes over while the other one serves",
            config.data_dir,
            foreign,
        )
    is_told = False
    while True:
        try:
            held = await disk.run(lambda: disk.lock(path))
        except UserError as error:
            if not is_told:
                log.info("standing by for %s: %s", config.data_dir, error)
                is_told = True
            await asyncio.sleep(POLL_S)
        else:
            log.info("took over %s", config.data_dir)
            return held
