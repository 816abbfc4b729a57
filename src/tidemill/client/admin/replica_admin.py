"""Where replicas are, for an administrator: reassignments, draining, brokers that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import ClientError, check, error_code, single_result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.wire.generated.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
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
from tidemill.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidemill.wire.generated.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

__all__ = [
    "BrokerStandings",
    "Reassignment",
    "ask_draining",
    "ask_standings",
    "list_reassignments",
    "reassign",
    "set_draining",
    "unregister_broker",
]

DRAINING = "tidemill.broker.draining"
_BROKER_RESOURCE = 4
_SET, _DELETE = 0, 1
_PATIENCE_S = 3.0
"""With a broker that may be dead, while people wait."""


@final
@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas are being moved."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    """All of now, those that come and those that go among them."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def reassign(
    cluster: ClusterClient, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, KafkaError]:
    """Begin to move replicas, or stop it where there is no target; the refusals, by partition."""
    topics: dict[str, ReassignableTopic] = {}
    for (name, index), replicas in targets.items():
        topic = topics.setdefault(name, ReassignableTopic(name=name))
        wanted = None if replicas is None else list(replicas)
        topic.partitions.append(ReassignablePartition(partition_index=index, replicas=wanted))
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=int(cluster.request_timeout_s * 1000), topics=list(topics.values())
    )

    async def ask() -> AlterPartitionReassignmentsResponse:
        response = await cluster.ask_controller(request, AlterPartitionReassignmentsResponse)
        check(response.error_code, response.error_message or "no replica was moved")
        return response

    response = await retry_refusals(ask, {ErrorCode.NOT_CONTROLLER})
    return {
        TopicPartition(topic.name, one.partition_index): KafkaError(
            error_code(one.error_code), one.error_message or ""
        )
        for topic in response.responses
        for one in topic.partitions
        if one.error_code != ErrorCode.NONE
    }


async def list_reassignments(
    cluster: ClusterClient, *, from_any: bool = False
) -> list[Reassignment]:
    """All partitions whose replicas are being moved, by name.

    The controller knows of all; `from_any` asks another broker, which may hear a moment later.
    """
    request = ListPartitionReassignmentsRequest(
        timeout_ms=int(cluster.request_timeout_s * 1000), topics=None
    )
    if from_any:
        response = await cluster.ask_any(request, ListPartitionReassignmentsResponse)
    else:
        response = await cluster.ask_controller(request, ListPartitionReassignmentsResponse)
    check(response.error_code, response.error_message or "reassignments are not listed")
    found = [
        Reassignment(
            TopicPartition(topic.name, one.partition_index),
            tuple(one.replicas),
            tuple(one.adding_replicas),
            tuple(one.removing_replicas),
        )
        for topic in response.topics
        for one in topic.partitions
    ]
    return sorted(found, key=lambda one: one.partition)


async def set_draining(cluster: ClusterClient, broker_id: int, *, is_draining: bool) -> None:
    """Move everything off a broker from now on, or stop that. Raises KafkaError."""
    change = AlterableConfig(
        name=DRAINING,
        config_operation=_SET if is_draining else _DELETE,
        value="true" if is_draining else None,
    )
    resource = AlterConfigsResource(
        resource_type=_BROKER_RESOURCE, resource_name=str(broker_id), configs=[change]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])

    async def ask() -> None:
        response = await cluster.ask_controller(request, IncrementalAlterConfigsResponse)
        result = single_result(response.responses)
        check(result.error_code, result.error_message)

    await retry_refusals(ask, {ErrorCode.NOT_CONTROLLER})


async def ask_draining(cluster: ClusterClient, broker_ids: Iterable[int]) -> dict[int, bool | None]:
    """Which of some brokers are drained; None: it does not answer.

    One after the other: a client opens one connection at a time, and a frozen broker holds that up.
    """
    return {one: await _ask_draining(cluster, one) for one in broker_ids}


async def _ask_draining(cluster: ClusterClient, broker_id: int) -> bool | None:
    resource = DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE,
        resource_name=str(broker_id),
        configuration_keys=[DRAINING],
    )
    request = DescribeConfigsRequest(resources=[resource])
    try:
        async with asyncio.timeout(_PATIENCE_S):
            response = await cluster.ask_broker(broker_id, request, DescribeConfigsResponse)
    except (ClientError, KafkaError, TimeoutError):
        return None
    return [config.value for one in response.results for config in one.configs] == ["true"]


@final
class BrokerStandings(NamedTuple):
    """Registered brokers with which something is wrong."""

    fenced: dict[int, str]
    """Those that the controller has not let in.

    With the sentence that says why their software keeps them out, or an empty one.
    """
    unhearing: frozenset[int]
    """Those that get no answer from the controller."""


async def ask_standings(cluster: ClusterClient) -> BrokerStandings:
    """What a broker that answers knows of all that are registered. Raises KafkaError."""
    request = DescribeClusterRequest(include_fenced_brokers=True)
    response = await cluster.ask_any(request, DescribeClusterResponse)
    check(response.error_code, response.error_message or "the cluster is not described")
    return BrokerStandings(
        {one.broker_id: one.kept_out_because for one in response.brokers if one.is_fenced},
        frozenset(one.broker_id for one in response.brokers if one.hears_no_controller),
    )


async def unregister_broker(cluster: ClusterClient, broker_id: int) -> None:
    """Forget a broker that is gone for good. Raises KafkaError."""
    request = UnregisterBrokerRequest(broker_id=broker_id)
    response = await cluster.ask_controller(request, UnregisterBrokerResponse)
    check(response.error_code, response.error_message or f"broker {broker_id} is not forgotten")
