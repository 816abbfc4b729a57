"""`tidemill cluster migrate`: move a stopped cluster's metadata into ZooKeeper, or back.

Every step can be repeated: whatever ends the command, it is simply run again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import click

from tidemill.cli.config_file import read_config_file
from tidemill.core.config.broker_config import BrokerConfig, broker_config
from tidemill.core.errors import UserError

if TYPE_CHECKING:
    from tidemill.metadata.store.coord import Coord
    from tidemill.storage.files.disk import Disk

__all__ = ["migrate"]

MOVED_SUFFIX = ".migrated"
_BROKER_DIRECTORY = "broker-"


@final
@dataclass(frozen=True, slots=True)
class _Home:
    """The data directory of one broker."""

    path: str
    broker_id: int
    cluster_id: str


@click.command(short_help="Move the metadata to ZooKeeper, or back.")
@click.option("--data-dir", metavar="DIR", help="Where `up` has its data.  [default: ./data]")
@click.option("--zookeeper", metavar="HOSTS[/NODE]", help="The ZooKeeper to move to.")
@click.option("--back", is_flag=True, help="From ZooKeeper into the embedded store.")
@click.option("--config", "config_file", metavar="FILE", help="File with key=value lines.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set one key; repeatable."
)
def migrate(
    data_dir: str | None,
    zookeeper: str | None,
    back: bool,
    config_file: str | None,
    settings: tuple[str, ...],
) -> None:
    """Move the metadata of a stopped cluster to ZooKeeper, or back.

    The brokers of one host move with all that they hold; records stay where they are. Stop all
    brokers first. If the command is interrupted, run it again: it goes on where it stopped.
    """
    named = {"data.dir": data_dir, "zookeeper.connect": zookeeper}
    values = {key: value for key, value in named.items() if value is not None}
    file_text = read_config_file(config_file)

    def configured(more: dict[str, str]) -> BrokerConfig:
        return broker_config(
            file_text=file_text,
            file_name=config_file or "",
            flags=settings,
            values={**values, **more},
        )

    from tidemill.storage.directory.store_note import try_read_store
    from tidemill.storage.files.disk import OsDisk

    config = configured({})
    disk = OsDisk()
    try:
        noted = try_read_store(disk, config.data_dir)
        if not config.zookeeper.connect and noted is not None:
            config = configured({"zookeeper.connect": noted})
        if back:
            _move_back(disk, config, configured({"zookeeper.connect": ""}))
        else:
            _move_to_zookeeper(disk, config, configured({"zookeeper.connect": ""}))
    finally:
        disk.close()


# --- the two ways --------------------------------------------------------------------------------


def _move_to_zookeeper(disk: Disk, config: BrokerConfig, embedded: BrokerConfig) -> None:
    from tidemill.storage.directory.store_note import note_store

    where = config.zookeeper.where
    if not where:
        raise UserError("say with --zookeeper HOSTS where to move the metadata")
    homes = _homes(disk, config.data_dir)
    with _locked(disk, homes):
        if disk.exists(embedded.store_path):
            cluster_id = asyncio.run(_moved(embedded, config, homes))
            for home in homes:
                note_store(disk, home.path, where)
            disk.rename(embedded.store_path, embedded.store_path + MOVED_SUFFIX)
            disk.sync_directory(os.path.dirname(embedded.store_path) or ".")
            click.echo(f"cluster {cluster_id} is in ZooKeeper now: {where}")
        elif _all_noted(disk, homes):
            click.echo(f"the metadata of {config.data_dir} is in ZooKeeper already")
        else:
            raise UserError(f"there is no {embedded.store_path} to move")
    for home in homes:
        click.echo(
            f"start broker {home.broker_id} with: tidemill up --zookeeper {where} "
            f"--broker-id {home.broker_id} --data-dir {home.path}"
        )
    click.echo("give each its own --listen and --internal, addresses that the other hosts reach")


def _move_back(disk: Disk, config: BrokerConfig, embedded: BrokerConfig) -> None:
    from tidemill.storage.directory.store_note import forget_store

    homes = _homes(disk, config.data_dir)
    with _locked(disk, homes):
        if not config.zookeeper.connect:
            click.echo(f"the metadata of {config.data_dir} is in the embedded store already")
        else:
            cluster_id = asyncio.run(_moved(config, embedded, homes, is_back=True))
            for home in reversed(homes):  # the first one last: it says where the ZooKeeper is
                forget_store(disk, home.path)
            click.echo(f"cluster {cluster_id} is in {embedded.store_path} now")
    click.echo(f"start it with: tidemill up --brokers {len(homes)} --data-dir {config.data_dir}")


async def _moved(
    source_config: BrokerConfig,
    target_config: BrokerConfig,
    homes: Sequence[_Home],
    *,
    is_back: bool = False,
) -> str:
    """Move all values; the cluster's id."""
    from tidemill.metadata.migration import Migration

    source, target = _open(source_config), _open(target_config)
    await source.start()
    try:
        await target.start()
        try:
            migration = Migration(source, target)
            cluster_id = await migration.check()
            _check_cluster(homes, cluster_id)
            if is_back:
                _check_all_here(homes, await migration.members(), target_config.data_dir)
            return await migration.run()
        finally:
            await target.close()
    finally:
        await source.close()


def _open(config: BrokerConfig) -> Coord:
    from tidemill.broker.store_choice import open_store
    from tidemill.core.clock import SystemClock

    return open_store(config, SystemClock())


# --- directories ---------------------------------------------------------------------------------


def _homes(disk: Disk, data_dir: str) -> list[_Home]:
    """The brokers that `up` runs on this directory, by id."""
    from tidemill.broker.data_plane import LOGS_DIRECTORY
    from tidemill.storage.directory.directory_meta import META_NAME, read_meta

    if not disk.exists(data_dir):
        raise UserError(f"{data_dir} does not exist; name the directory with --data-dir")
    below = [name for name in disk.list_names(data_dir) if name.startswith(_BROKER_DIRECTORY)]
    found: list[_Home] = []
    for path in [data_dir, *(f"{data_dir}/{name}" for name in below)]:
        logs = f"{path}/{LOGS_DIRECTORY}"
        if disk.exists(f"{logs}/{META_NAME}"):
            meta = read_meta(disk, logs)
            found.append(_Home(path, meta.broker_id, meta.cluster_id))
    if not found:
        raise UserError(f"{data_dir} has no broker's data in it")
    return sorted(found, key=lambda home: home.broker_id)


@contextmanager
def _locked(disk: Disk, homes: Sequence[_Home]) -> Iterator[None]:
    """No broker of these directories runs, and none starts."""
    from tidemill.broker.data_plane import LOGS_DIRECTORY
    from tidemill.storage.directory.log_directory import LOCK_NAME

    with ExitStack() as stack:
        for home in homes:
            try:
                lock = disk.lock(f"{home.path}/{LOGS_DIRECTORY}/{LOCK_NAME}")
            except UserError as error:
                raise UserError(
                    f"{home.path} is in use ({error}): stop all brokers first"
                ) from None
            stack.callback(lock.close)
        yield


def _all_noted(disk: Disk, homes: Sequence[_Home]) -> bool:
    from tidemill.storage.directory.store_note import try_read_store

    return all(try_read_store(disk, home.path) is not None for home in homes)


def _check_cluster(homes: Sequence[_Home], cluster_id: str) -> None:
    for home in homes:
        if home.cluster_id != cluster_id:
            raise UserError(
                f"{home.path} belongs to cluster {home.cluster_id}, the metadata to {cluster_id}"
            )


def _check_all_here(homes: Sequence[_Home], members: set[int], root: str) -> None:
    """On one host each broker's directory has its place."""
    for broker_id in sorted(members | {home.broker_id for home in homes}):
        path = f"{root}/{_BROKER_DIRECTORY}{broker_id}" if broker_id else root
        if not any(home.broker_id == broker_id and home.path == path for home in homes):
            raise UserError(
                f"the embedded store serves one host: broker {broker_id} must have its data in "
                f"{path} first"
            )
