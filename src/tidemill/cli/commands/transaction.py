"""`tidemill transaction`: list, describe, abort."""

from __future__ import annotations

from typing import Any

import click

from tidemill.cli.session import bootstrap_option, json_option, run_client
from tidemill.cli.text import escape, print_json, print_table
from tidemill.client.admin.transaction_admin import (
    OpenTransaction,
    TransactionAdmin,
    TransactionDescription,
    TransactionSummary,
)
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.clock import SystemClock
from tidemill.core.ids import TopicPartition

__all__ = ["transaction"]


@click.group()
def transaction() -> None:
    """List, describe and abort transactions."""


@transaction.command("list")
@click.option("--state", "states", multiple=True, help="Only this state: Ongoing, ...; repeatable.")
@click.option(
    "--hanging", is_flag=True, help="Those that a partition has open and no coordinator will end."
)
@json_option
@bootstrap_option
def list_(states: tuple[str, ...], hanging: bool, as_json: bool, bootstrap: str) -> None:
    """List the transactional ids, by name; or transactions that hang."""
    if hanging:
        _list_hanging(bootstrap, as_json=as_json)
        return

    async def work(cluster: ClusterClient) -> list[TransactionSummary]:
        return await TransactionAdmin(cluster).list_transactions(states)

    found = run_client(bootstrap, work)
    if as_json:
        print_json([_summary_facts(one) for one in found])
    else:
        rows = [
            (one.transactional_id, one.state, one.producer_id, one.coordinator) for one in found
        ]
        print_table(("TRANSACTIONAL ID", "STATE", "PRODUCER", "COORDINATOR"), rows)


@transaction.command()
@click.argument("name")
@json_option
@bootstrap_option
def describe(name: str, as_json: bool, bootstrap: str) -> None:
    """Describe the transactional id NAME: its producer, its state, its partitions."""

    async def work(cluster: ClusterClient) -> TransactionDescription:
        return await TransactionAdmin(cluster).describe(name)

    found = run_client(bootstrap, work)
    if as_json:
        print_json(_description_facts(found))
    else:
        _print_description(found)


@transaction.command()
@click.argument("name", required=False)
@click.option("--topic", help="Of a transaction that hangs.")
@click.option("--partition", type=click.IntRange(0), help="Of a transaction that hangs.")
@click.option("--start-offset", type=click.IntRange(0), help="FIRST OFFSET of `list --hanging`.")
@bootstrap_option
def abort(
    name: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    bootstrap: str,
) -> None:
    """Abort the open transaction of the transactional id NAME, and fence its producer.

    The producer's next request fails; it has to be started again.

    Without NAME: abort a transaction that hangs in a partition, which no coordinator will end.
    """
    if topic is not None and partition is not None and start_offset is not None and name is None:
        _abort_hanging(TopicPartition(topic, partition), start_offset, bootstrap)
    elif name is not None and (topic, partition, start_offset) == (None, None, None):
        _abort_named(name, bootstrap)
    else:
        raise click.UsageError("give NAME, or --topic, --partition and --start-offset")


def _abort_named(name: str, bootstrap: str) -> None:
    async def work(cluster: ClusterClient) -> None:
        await TransactionAdmin(cluster).abort(name)

    run_client(bootstrap, work)
    click.echo(f"aborted the transaction of {escape(name)}")


def _abort_hanging(partition: TopicPartition, start_offset: int, bootstrap: str) -> None:
    async def work(cluster: ClusterClient) -> OpenTransaction:
        return await TransactionAdmin(cluster).abort_hanging(partition, start_offset)

    ended = run_client(bootstrap, work)
    producer = f"producer {ended.producer_id}, epoch {ended.producer_epoch}"
    click.echo(f"aborted the transaction of {producer}, in {escape(str(partition))}")


def _list_hanging(bootstrap: str, *, as_json: bool) -> None:
    async def work(cluster: ClusterClient) -> list[OpenTransaction]:
        return await TransactionAdmin(cluster).find_hanging()

    found = run_client(bootstrap, work)
    if as_json:
        print_json([_hanging_facts(one) for one in found])
        return
    now_ms = SystemClock().wall_ms()
    rows = [
        (
            one.partition.topic,
            one.partition.partition,
            one.producer_id,
            one.producer_epoch,
            one.first_offset,
            _age(now_ms, one.last_write_ms),
        )
        for one in found
    ]
    print_table(("TOPIC", "PARTITION", "PRODUCER", "EPOCH", "FIRST OFFSET", "LAST WRITE"), rows)


def _print_description(found: TransactionDescription) -> None:
    now_ms = SystemClock().wall_ms()
    click.echo(f"transactional id  {escape(found.transactional_id)}")
    click.echo(f"state             {found.state}")
    click.echo(f"producer          {found.producer_id}, epoch {found.producer_epoch}")
    click.echo(f"coordinator       {found.coordinator}")
    click.echo(f"timeout           {found.timeout_ms / 1000:g} s")
    if found.is_open and found.start_ms is not None:
        click.echo(f"begun             {_age(now_ms, found.start_ms)}")
    if found.partitions:
        rows = [(one.topic, one.partition) for one in found.partitions]
        print_table(("TOPIC", "PARTITION"), rows)


def _age(now_ms: int, then_ms: int) -> str:
    return f"{max(0, now_ms - then_ms) // 1000} s ago"


def _summary_facts(found: TransactionSummary) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "coordinator": found.coordinator,
    }


def _description_facts(found: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "partitions": [
            {"topic": one.topic, "partition": one.partition} for one in found.partitions
        ],
    }


def _hanging_facts(found: OpenTransaction) -> dict[str, Any]:
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "first_offset": found.first_offset,
        "last_write_ms": found.last_write_ms,
    }
