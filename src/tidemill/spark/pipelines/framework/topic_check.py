"""The topics of a pipeline before it starts: inputs must exist, missing outputs are created."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, final

from tidemill.client.admin.topic_admin import Admin
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode, KafkaError, UserError
from tidemill.core.limits import MIB
from tidemill.core.net import AsyncioNet
from tidemill.spark.bridge.blocking_client import Address

if TYPE_CHECKING:
    from tidemill.spark.pipelines.framework.pipeline import Topics

__all__ = ["InputTopic", "input_topic", "prepare_topics", "record_bytes_max"]

T = TypeVar("T")

_BYTES_MAX_KEY: Final = "max.message.bytes"
_BYTES_MAX_DEFAULT: Final = MIB


@final
class InputTopic(NamedTuple):
    """What tells a topic apart."""

    topic_id: str
    partition_count: int


def prepare_topics(address: Address, topics: Topics) -> list[str]:
    """Names of the topics that were created. UserError if an input is missing."""
    return asyncio.run(_asked(address, lambda admin: _prepare(admin, topics)))


def record_bytes_max(address: Address, topic: str) -> int:
    """How large a batch of `topic` may be, and so a record."""
    return asyncio.run(_asked(address, lambda admin: _bytes_max(admin, topic)))


def input_topic(address: Address, topic: str) -> InputTopic:
    """Which of the topics that have had this name it is, and its partitions."""

    async def ask(admin: Admin) -> InputTopic:
        info = await admin.describe_topic(topic)
        return InputTopic(str(info.topic_id), len(info.partitions))

    return asyncio.run(_asked(address, ask))


async def _asked(address: Address, ask: Callable[[Admin], Awaitable[T]]) -> T:
    async with ClusterClient(
        AsyncioNet(),
        address.bootstrap,
        client_id=address.client_id,
        request_timeout_s=address.request_timeout_ms / 1000,
    ) as cluster:
        return await ask(Admin(cluster))


async def _prepare(admin: Admin, topics: Topics) -> list[str]:
    existing = {info.name for info in await admin.list_topics()}
    for name in topics.inputs:
        if name not in existing:
            raise UserError(f"there is no topic {name}: `tidemill topic create {name}`")
    missing = [name for name in dict.fromkeys(topics.outputs) if name not in existing]
    return [name for name in missing if await _create(admin, name)]


async def _bytes_max(admin: Admin, topic: str) -> int:
    values = {entry.name: entry.value for entry in await admin.describe_configs(topic)}
    return int(values.get(_BYTES_MAX_KEY) or _BYTES_MAX_DEFAULT)


async def _create(admin: Admin, name: str) -> bool:
    try:
        await admin.create_topic(name)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # another process created it first
            raise
        return False
    return True
