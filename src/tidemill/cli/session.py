"""Options and connection that all client commands share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.config.broker_config import Endpoint, parse_endpoint
from tidemill.core.errors import UserError
from tidemill.core.net import AsyncioNet, Net

__all__ = ["bootstrap_option", "json_option", "parse_bootstrap", "run_client"]

T = TypeVar("T")

_ADDRESSES_MAX = 100

bootstrap_option = click.option(
    "--bootstrap",
    envvar="TIDEMILL_BOOTSTRAP",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT[,...]",
    help="Brokers to connect to first; one of the cluster is enough.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def parse_bootstrap(text: str) -> list[Endpoint]:
    """Parse one or several HOST:PORT, separated by commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not 1 <= len(parts) <= _ADDRESSES_MAX:
        raise UserError(f"--bootstrap needs 1 to {_ADDRESSES_MAX} addresses, as in 127.0.0.1:9092")
    return [parse_endpoint(part, key="--bootstrap") for part in parts]


def run_client(bootstrap: str, work: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a client of the cluster; its result.

    A test may put its own network into the context's object.
    """
    addresses = parse_bootstrap(bootstrap)
    net: Net | None = click.get_current_context().obj

    async def session() -> T:
        async with ClusterClient(
            net or AsyncioNet(), addresses, client_id="tidemill-cli"
        ) as cluster:
            return await work(cluster)

    return asyncio.run(session())
