"""Topics, their configuration and their records, for an administrator.

Changes go to the controller. They are retried while a broker answers that it is not the controller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar, final
from uuid import UUID

from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import check, error_code, single_result
from tidemill.client.network.metadata_cache import TopicInfo
from tidemill.client.network.offset_lookup import LEADER_MOVED, ListedOffset, list_offsets
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidemill.wire.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidemill.wire.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidemill.wire.generated.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidemill.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidemill.wire.message import Message

__all__ = ["Admin", "ConfigEntry", "CreatedTopic"]

R = TypeVar("R", bound=Message)
T = TypeVar("T")

BROKER_DEFAULT = -1
"""Partitions or replication factor of a new topic: use the broker's default."""

_TOPIC_RESOURCE = 2
_SET = 0
_DELETE = 1
_DYNAMIC_TOPIC_CONFIG = 1


@final
@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """The topic that was created; the counts are -1 if the broker is too old to report them."""

    name: str
    topic_id: UUID
    partitions: int
    replication: int


@final
@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a topic's configuration; `value` is None when it is secret."""

    name: str
    value: str | None
    is_set: bool
    """Whether the topic sets the key itself, rather than the broker or the default."""
    read_only: bool


@final
class Admin:
    """Administers the topics of one cluster."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    # --- topics ----------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create one topic. Raises KafkaError."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication,
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
        )
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=self._timeout_ms(), validate_only=validate_only
        )

        async def ask() -> CreatedTopic:
            response = await self._ask_controller(request, CreateTopicsResponse)
            result = single_result(response.topics)
            check(result.error_code, result.error_message)
            return CreatedTopic(
                name, result.topic_id, result.num_partitions, result.replication_factor
            )

        return await self._retry(ask)

    async def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete topics; the refusal of each, or None, in the order of `names`."""
        wanted = list(dict.fromkeys(names))
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in wanted],
            timeout_ms=self._timeout_ms(),
        )

        async def ask() -> dict[str, KafkaError | None]:
            response = await self._ask_controller(request, DeleteTopicsResponse)
            unknown = ErrorCode.UNKNOWN_SERVER_ERROR
            found: dict[str, KafkaError | None] = {
                name: KafkaError(unknown, "no answer for it") for name in wanted
            }
            for result in response.responses:
                code = error_code(result.error_code)
                if code is ErrorCode.NOT_CONTROLLER:
                    raise KafkaError(code)
                if result.name is not None and result.name in found:
                    refusal = KafkaError(code, result.error_message or "")
                    found[result.name] = refusal if code is not ErrorCode.NONE else None
            return found

        return await self._retry(ask)

    async def list_topics(self) -> list[TopicInfo]:
        """Every topic that we may describe, by name."""
        await self._cluster.refresh(None)
        return sorted(self._cluster.metadata.topics.values(), key=lambda topic: topic.name)

    async def describe_topic(self, name: str) -> TopicInfo:
        """One topic. Raises KafkaError."""
        await self._cluster.refresh([name])
        return self._cluster.metadata.topic(name)

    async def create_partitions(self, topic: str, count: int) -> None:
        """Raise the number of partitions to `count`."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
            timeout_ms=self._timeout_ms(),
        )

        async def ask() -> None:
            response = await self._ask_controller(request, CreatePartitionsResponse)
            result = single_result(response.results)
            check(result.error_code, result.error_message)

        await self._retry(ask)

    # --- configuration ---------------------------------------------------------------------------

    async def describe_configs(self, topic: str) -> list[ConfigEntry]:
        """The configuration of a topic, with all keys."""
        resource = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource])
        response = await self._cluster.ask_any(request, DescribeConfigsResponse)
        result = single_result(response.results)
        check(result.error_code, result.error_message)
        return [
            ConfigEntry(
                config.name,
                None if config.is_sensitive else config.value,
                config.config_source == _DYNAMIC_TOPIC_CONFIG,
                config.read_only,
            )
            for config in result.configs
        ]

    async def alter_configs(
        self, topic: str, *, set_to: Mapping[str, str], delete: Iterable[str] = ()
    ) -> None:
        """Set some keys and reset others to their defaults; all changes apply, or none."""
        configs = [
            AlterableConfig(name=name, config_operation=_SET, value=value)
            for name, value in set_to.items()
        ]
        configs += [
            AlterableConfig(name=name, config_operation=_DELETE, value=None) for name in delete
        ]
        resource = AlterConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=topic, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])

        async def ask() -> None:
            response = await self._ask_controller(request, IncrementalAlterConfigsResponse)
            result = single_result(response.responses)
            check(result.error_code, result.error_message)

        await self._retry(ask)

    # --- records ---------------------------------------------------------------------------------

    async def list_offsets(self, topic: str, timestamp_ms: int) -> dict[int, ListedOffset]:
        """The first offset at or after a time (or a special value of it), for each partition."""
        info = await self._cluster.topic(topic)
        wanted = {TopicPartition(topic, index): timestamp_ms for index in info.partitions}
        found = await list_offsets(self._cluster, wanted)
        return {partition.partition: offset for partition, offset in sorted(found.items())}

    async def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records before an offset in some partitions; the new log start offsets."""

        async def ask() -> dict[int, int]:
            await self._cluster.topic(topic)
            starts: dict[int, int] = {}
            for index, offset in before.items():
                starts[index] = await self._delete_records_of(TopicPartition(topic, index), offset)
            return starts

        return await retry_refusals(ask, LEADER_MOVED)

    async def _delete_records_of(self, partition: TopicPartition, offset: int) -> int:
        leader = self._cluster.metadata.try_leader(*partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(partition))
        wanted = DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=partition.topic, partitions=[wanted])],
            timeout_ms=self._timeout_ms(),
        )
        response = await self._cluster.ask_broker(leader.broker_id, request, DeleteRecordsResponse)
        result = single_result(single_result(response.topics).partitions)
        check(result.error_code, str(partition))
        return result.low_watermark

    # --- the controller --------------------------------------------------------------------------

    def _timeout_ms(self) -> int:
        return int(self._cluster.request_timeout_s * 1000)

    async def _ask_controller(self, message: Message, response_type: type[R]) -> R:
        return await self._cluster.ask_controller(message, response_type)

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        async def attempt() -> T:
            try:
                return await ask()
            except KafkaError as refusal:
                if refusal.code is ErrorCode.NOT_CONTROLLER:
                    await self._cluster.refresh([])
                raise

        passing = {ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE}
        return await retry_refusals(attempt, passing)
