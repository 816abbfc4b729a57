"""`tidemill topic`: create, list, describe, alter, delete."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from tidemill.cli.replica_moves import MovePlan, carry_out
from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json, print_table, say_deleted
from tidemill.client.admin.cluster_admin import take_cluster_snapshot
from tidemill.client.admin.topic_admin import BROKER_DEFAULT, Admin, ConfigEntry
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.metadata_cache import TopicInfo
from tidemill.client.network.offset_lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidemill.core.balancing.balance import resized
from tidemill.core.config.keys import parse_assignments
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.steps import finished

__all__ = ["topic"]

_INT32 = click.IntRange(1, 2**31 - 1)


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--partitions", type=_INT32, help="Number of partitions.  [default: the broker's]")
@click.option("--replication", type=click.IntRange(1, 32_767), help="Copies of each partition.")
@click.option(
    "--config", "configs", metavar="KEY=VALUE", multiple=True, help="Set a key; repeatable."
)
@json_option
@bootstrap_option
def create(
    name: str,
    partitions: int | None,
    replication: int | None,
    configs: tuple[str, ...],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Create the topic NAME."""
    values = parse_assignments(configs, source="--config")

    async def work(cluster: ClusterClient) -> None:
        made = await Admin(cluster).create_topic(
            name,
            partitions=partitions or BROKER_DEFAULT,
            replication=replication or BROKER_DEFAULT,
            configs=values,
        )
        if as_json:
            print_json(
                {
                    "name": made.name,
                    "topic_id": str(made.topic_id),
                    "partitions": made.partitions,
                    "replication": made.replication,
                }
            )
        else:
            counts = f"{made.partitions} partitions, replication {made.replication}"
            click.echo(f"created {escape(made.name)}: {counts}")

    run_client(bootstrap, work)


@topic.command("list")
@click.option("--all", "show_internal", is_flag=True, help="Show internal topics too.")
@json_option
@bootstrap_option
def list_(show_internal: bool, as_json: bool, bootstrap: str) -> None:
    """List the topics, by name."""

    async def work(cluster: ClusterClient) -> list[TopicInfo]:
        return await Admin(cluster).list_topics()

    topics = [t for t in run_client(bootstrap, work) if show_internal or not t.internal]
    if as_json:
        print_json([_summary(info) for info in topics])
    else:
        rows = [(t.name, len(t.partitions), _replication(t)) for t in topics]
        print_table(("TOPIC", "PARTITIONS", "REPLICATION"), rows)


@topic.command()
@click.argument("name", required=False)
@json_option
@bootstrap_option
def describe(name: str | None, as_json: bool, bootstrap: str) -> None:
    """Describe the topic NAME, or every topic: partitions, leaders, offsets, configuration."""

    async def work(cluster: ClusterClient) -> list[dict[str, Any]]:
        admin = Admin(cluster)
        if name is not None:
            return [await _description(admin, await admin.describe_topic(name))]
        return [await _description(admin, info) for info in await admin.list_topics()]

    described = run_client(bootstrap, work)
    if as_json:
        print_json(described if name is None else described[0])
        return
    for index, facts in enumerate(described):
        if index:
            click.echo()
        _print_description(facts)


@topic.command()
@click.argument("name")
@click.option(
    "--config", "configs", metavar="KEY=VALUE", multiple=True, help="Set a key; repeatable."
)
@click.option(
    "--delete-config",
    "deleted",
    metavar="KEY",
    multiple=True,
    help="Reset a key to its default; repeatable.",
)
@click.option("--partitions", type=_INT32, help="Raise the number of partitions to this.")
@click.option(
    "--replication",
    type=click.IntRange(1, 32_767),
    help="Copies of each partition; waits until they are there.",
)
@bootstrap_option
def alter(
    name: str,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    partitions: int | None,
    replication: int | None,
    bootstrap: str,
) -> None:
    """Change the configuration of the topic NAME, add partitions, or make more or fewer copies."""
    values = parse_assignments(configs, source="--config")
    if not values and not deleted and partitions is None and replication is None:
        raise click.UsageError("give --config, --delete-config, --partitions or --replication")

    async def work(cluster: ClusterClient) -> None:
        admin = Admin(cluster)
        if values or deleted:
            await admin.alter_configs(name, set_to=values, delete=deleted)
        if partitions is not None:
            await admin.create_partitions(name, partitions)
        if replication is not None:
            await _resize(cluster, name, replication)

    run_client(bootstrap, work)
    click.echo(f"altered {escape(name)}")


@topic.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@bootstrap_option
def delete(names: tuple[str, ...], bootstrap: str) -> None:
    """Delete topics and all their records."""

    async def work(cluster: ClusterClient) -> dict[str, KafkaError | None]:
        return await Admin(cluster).delete_topics(names)

    say_deleted(run_client(bootstrap, work))


async def _resize(cluster: ClusterClient, name: str, factor: int) -> None:
    """Give all partitions of a topic `factor` replicas, and wait until they are in sync."""
    plan = MovePlan.of(await take_cluster_snapshot(cluster))
    of_topic = {one: replicas for one, replicas in plan.before.items() if one.topic == name}
    if not of_topic:
        raise plan.missing(name)
    if factor > len(plan.usable):
        detail = f"{factor} replicas need as many brokers; {len(plan.usable)} can take some"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
    steps = resized(plan.before, plan.racks, factor, name, usable=plan.usable)
    await carry_out(cluster, replace(plan, targets=finished(steps)))


def _replication(info: TopicInfo) -> int:
    return max((len(p.replicas) for p in info.partitions.values()), default=0)


def _summary(info: TopicInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "topic_id": str(info.topic_id),
        "partitions": len(info.partitions),
        "replication": _replication(info),
        "internal": info.internal,
    }


async def _description(admin: Admin, info: TopicInfo) -> dict[str, Any]:
    starts = await admin.list_offsets(info.name, EARLIEST_TIMESTAMP)
    ends = await admin.list_offsets(info.name, LATEST_TIMESTAMP)
    configs = await admin.describe_configs(info.name)
    partitions = [
        {
            "partition": p.index,
            "leader": p.leader,
            "leader_epoch": p.leader_epoch,
            "replicas": p.replicas,
            "isr": p.isr,
            "log_start_offset": starts[p.index].offset,
            "high_watermark": ends[p.index].offset,
        }
        for p in info.partitions.values()
        if p.index in starts and p.index in ends
    ]
    return _summary(info) | {"partitions": partitions, "configs": _config_facts(configs)}


def _config_facts(configs: list[ConfigEntry]) -> dict[str, dict[str, Any]]:
    return {c.name: {"value": c.value, "is_set": c.is_set} for c in configs}


def _print_description(facts: dict[str, Any]) -> None:
    click.echo(f"{escape(facts['name'])}  id {facts['topic_id']}")
    set_here = {key: c["value"] for key, c in facts["configs"].items() if c["is_set"]}
    for key, value in set_here.items():
        click.echo(f"  {escape(key)}={escape(str(value))}")
    rows = [
        (
            p["partition"],
            p["leader"],
            p["leader_epoch"],
            " ".join(map(str, p["replicas"])),
            " ".join(map(str, p["isr"])),
            p["log_start_offset"],
            p["high_watermark"],
        )
        for p in facts["partitions"]
    ]
    columns = ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "START", "END")
    print_table(columns, rows)
