"""`tidemill cluster features`: which levels of features the cluster has, and their changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json, print_table
from tidemill.client.admin.feature_admin import (
    ClusterFeatures,
    LevelDirection,
    change_levels,
    describe_features,
)
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import UserError

__all__ = ["features"]

_LEVEL_MAX = 2**15 - 1
_LEVEL_DIGITS_MAX = len(str(_LEVEL_MAX))

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Ask whether it can be done, and change nothing."
)


@click.group()
def features() -> None:
    """Show the levels of features that all brokers have agreed on, and change them."""


@features.command("describe")
@json_option
@bootstrap_option
def describe(as_json: bool, bootstrap: str) -> None:
    """Show the finalized level of each feature, and which levels the brokers support."""
    found = run_client(bootstrap, describe_features)
    if as_json:
        print_json(_facts(found))
        return
    rows = [(name, found.level_of(name), _shown_support(found, name)) for name in found.names()]
    print_table(("FEATURE", "LEVEL", "SUPPORTED"), rows)
    for sentence in _sentences(found):
        click.echo(escape(sentence))


@features.command("upgrade")
@click.argument("wanted", metavar="[FEATURE=LEVEL]...", nargs=-1)
@dry_run_option
@json_option
@bootstrap_option
def upgrade(wanted: tuple[str, ...], dry_run: bool, as_json: bool, bootstrap: str) -> None:
    """Raise levels, after all brokers were upgraded; without FEATURE=LEVEL all that can rise.

    A broker that does not support the new levels cannot join the cluster any more.
    """
    levels = _parsed(wanted)

    async def work(client: ClusterClient) -> tuple[ClusterFeatures, Mapping[str, int]]:
        before = await describe_features(client)
        chosen = levels or _highest(before)
        if chosen:
            await change_levels(client, chosen, LevelDirection.UP, dry_run=dry_run)
        return before, chosen

    before, chosen = run_client(bootstrap, work)
    _tell_change(before, chosen, dry_run=dry_run, as_json=as_json)


@features.command("downgrade")
@click.argument("wanted", metavar="FEATURE=LEVEL...", nargs=-1, required=True)
@dry_run_option
@json_option
@bootstrap_option
def downgrade(wanted: tuple[str, ...], dry_run: bool, as_json: bool, bootstrap: str) -> None:
    """Lower levels; 0 turns a feature off."""
    levels = _parsed(wanted)

    async def work(client: ClusterClient) -> ClusterFeatures:
        before = await describe_features(client)
        await change_levels(client, levels, LevelDirection.DOWN, dry_run=dry_run)
        return before

    _tell_change(run_client(bootstrap, work), levels, dry_run=dry_run, as_json=as_json)


def _parsed(wanted: tuple[str, ...]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for text in wanted:
        name, _, level = text.partition("=")
        is_number = level.isascii() and level.isdecimal() and len(level) <= _LEVEL_DIGITS_MAX
        if not name or not is_number or int(level) > _LEVEL_MAX or name in levels:
            raise UserError(
                f"{escape(text)}: expected features, each once, as in tidemill.version=2"
            )
        levels[name] = int(level)
    return levels


def _highest(found: ClusterFeatures) -> dict[str, int]:
    """The features that some broker supports at a higher level, with the highest one."""
    highest = {name: found.highest(name) for name in found.names()}
    return {name: level for name, level in highest.items() if level > found.level_of(name)}


def _tell_change(
    before: ClusterFeatures, levels: Mapping[str, int], *, dry_run: bool, as_json: bool
) -> None:
    changes = {name: one for name, one in levels.items() if one != before.level_of(name)}
    if as_json:
        facts = [
            {"feature": name, "from": before.level_of(name), "to": level}
            for name, level in changes.items()
        ]
        print_json({"changes": facts, "done": not dry_run})
        return
    for name, level in changes.items():
        verb = "could go" if dry_run else "went"
        click.echo(f"{escape(name)} {verb} from {before.level_of(name)} to {level}")
    if not changes:
        click.echo("all levels are as they should be")


def _shown_support(found: ClusterFeatures, name: str) -> str:
    """One range if all brokers have the same, else one for each."""
    ranges = {
        broker_id: "none" if name not in one else _shown(*one[name])
        for broker_id, one in found.supported.items()
    }
    if len(set(ranges.values())) == 1:
        return next(iter(ranges.values()))
    return ", ".join(f"{shown} by broker {broker_id}" for broker_id, shown in ranges.items())


def _shown(lowest: int, highest: int) -> str:
    return str(highest) if lowest == highest else f"{lowest} to {highest}"


def _sentences(found: ClusterFeatures) -> Iterator[str]:
    for name, level in _highest(found).items():
        unable = ", ".join(map(str, found.unable(name, level)))
        if unable:
            yield f"{name} can be {level} when broker {unable} is upgraded"
        else:
            yield f"`tidemill cluster features upgrade {name}={level}` raises {name}"


def _facts(found: ClusterFeatures) -> dict[str, Any]:
    return {
        "epoch": found.epoch,
        "features": [
            {
                "feature": name,
                "level": found.level_of(name),
                "supported": [
                    {"broker": broker_id, "lowest": one[name].lowest, "highest": one[name].highest}
                    for broker_id, one in found.supported.items()
                    if name in one
                ],
            }
            for name in found.names()
        ],
    }
