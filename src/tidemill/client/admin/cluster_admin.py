"""The cluster as a whole, for an administrator: its brokers, its partitions, elections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from tidemill.client.admin.feature_admin import finalized_levels
from tidemill.client.admin.repair_admin import LogConflict
from tidemill.client.admin.replica_admin import (
    Reassignment,
    ask_draining,
    ask_standings,
    list_reassignments,
)
from tidemill.client.admin.view_admin import ViewAdmin
from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import check, error_code
from tidemill.client.network.metadata_cache import BrokerInfo, TopicInfo
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)

__all__ = ["ClusterSnapshot", "ElectionResult", "elect_leaders", "take_cluster_snapshot"]

_PREFERRED, _UNCLEAN = 0, 1


@final
@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """What one broker knows of the cluster at one moment."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerInfo]
    """Those that are registered now, by id."""
    topics: list[TopicInfo]
    """By name, with internal ones and without views, which have no replicas of their own."""
    moves: list[Reassignment] = field(default_factory=list)
    fenced: Mapping[int, str] = field(default_factory=dict)
    """Brokers that are not let in, with why their software keeps them out, if it does."""
    draining: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    """Registered brokers that do not answer: dead, with a session that has not ended yet."""
    unhearing: frozenset[int] = frozenset()
    """Brokers that get no answer from the controller, as they say in the store."""
    views: Mapping[str, str] = field(default_factory=dict)
    """The names of views, with those of their bases."""
    conflicts: Sequence[LogConflict] = ()
    """Replicas that wait for a decision, if anybody has asked them."""
    levels: Mapping[str, int] = field(default_factory=dict)
    """The finalized levels of features."""


@final
@dataclass(frozen=True, slots=True)
class ElectionResult:
    """What became of the election of one partition."""

    partition: TopicPartition
    code: ErrorCode
    detail: str


async def take_cluster_snapshot(cluster: ClusterClient) -> ClusterSnapshot:
    """The cluster now."""
    await cluster.refresh(None)
    known = cluster.metadata
    broker_ids = sorted(known.brokers)
    names = sorted(name for name, topic in known.topics.items() if not topic.internal)
    views = {one.name: one.of for one in await ViewAdmin(cluster).views_among(names)}
    topics = [topic for name, topic in known.topics.items() if name not in views]
    drained = await ask_draining(cluster, broker_ids)
    silent = frozenset(one for one, answer in drained.items() if answer is None)
    deaf = known.controller_id in silent or known.controller_id not in known.brokers
    standings = await ask_standings(cluster)
    return ClusterSnapshot(
        known.cluster_id or "",
        known.controller_id,
        [known.brokers[one] for one in broker_ids],
        sorted(topics, key=lambda topic: topic.name),
        await list_reassignments(cluster, from_any=deaf),
        standings.fenced,
        frozenset(one for one, answer in drained.items() if answer),
        silent,
        standings.unhearing,
        views,
        levels=await finalized_levels(cluster),
    )


async def elect_leaders(
    cluster: ClusterClient, partitions: Sequence[TopicPartition] | None, *, unclean: bool
) -> list[ElectionResult]:
    """Hold elections for some partitions, or for all that need one. Raises KafkaError."""
    wanted: dict[str, list[int]] = {}
    for name, index in partitions or ():
        wanted.setdefault(name, []).append(index)
    request = ElectLeadersRequest(
        election_type=_UNCLEAN if unclean else _PREFERRED,
        topic_partitions=None
        if partitions is None
        else [TopicPartitions(topic=name, partitions=found) for name, found in wanted.items()],
        timeout_ms=int(cluster.request_timeout_s * 1000),
    )

    async def ask() -> ElectLeadersResponse:
        response = await cluster.ask_controller(request, ElectLeadersResponse)
        check(response.error_code, "no elections were held")
        return response

    response = await retry_refusals(ask, {ErrorCode.NOT_CONTROLLER})
    return [
        ElectionResult(
            TopicPartition(topic.topic, one.partition_id),
            error_code(one.error_code),
            one.error_message or "",
        )
        for topic in response.replica_election_results
        for one in topic.partition_result
    ]
