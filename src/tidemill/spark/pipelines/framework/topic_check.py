"""The topics of a pipeline before it starts: inputs must exist, missing outputs are created."""

from __future__ import annotations

import asyncio

from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode, KafkaError, UserError
from tidemill.core.net import AsyncioNet
from tidemill.spark.options.option_values import parse_bootstrap
from tidemill.spark.pipelines.framework.pipeline import Topics

__all__ = ["prepare_topics"]


def prepare_topics(bootstrap: str, topics: Topics) -> list[str]:
    """Names of the topics that were created. UserError if an input is missing."""
    return asyncio.run(_prepare(bootstrap, topics))


async def _prepare(bootstrap: str, topics: Topics) -> list[str]:
    endpoints = parse_bootstrap(bootstrap, "bootstrap")
    async with ClusterClient(AsyncioNet(), endpoints, client_id="tidemill-pipeline") as cluster:
        admin = Admin(cluster)
        existing = {info.name for info in await admin.list_topics()}
        for name in topics.inputs:
            if name not in existing:
                raise UserError(f"there is no topic {name}: `tidemill topic create {name}`")
        missing = [name for name in dict.fromkeys(topics.outputs) if name not in existing]
        return [name for name in missing if await _create(admin, name)]


async def _create(admin: Admin, name: str) -> bool:
    try:
        await admin.create_topic(name)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another process created it first
            raise
        return False
    return True
