"""Views, for an administrator: topics that show the matching records of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from tidemill.client.admin.topic_admin import Admin, CreatedTopic
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

__all__ = ["ViewAdmin", "ViewInfo"]

_VIEW_OF = "tidemill.view.of"
_VIEW_FILTER = "tidemill.view.filter"
_VIEW_HELD = "tidemill.view.held"
_TOPIC_RESOURCE = 2
_TOPICS_PER_REQUEST = 500


@final
@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A view: what it shows, of which topic."""

    name: str
    of: str
    where: str
    """The selector; empty if every record is shown."""
    held: bool = False
    """Whether it shows what is held, instead of what is delivered."""


@final
class ViewAdmin:
    """Administers the views of one cluster."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._topics = Admin(cluster)

    async def create(self, view: ViewInfo) -> CreatedTopic:
        """Create a view. Raises KafkaError."""
        configs = {_VIEW_OF: view.of}
        if view.where:
            configs[_VIEW_FILTER] = view.where
        if view.held:
            configs[_VIEW_HELD] = "true"
        return await self._topics.create_topic(view.name, configs=configs)

    async def list_views(self) -> list[ViewInfo]:
        """Every view that we may describe, by name."""
        names = [topic.name for topic in await self._topics.list_topics() if not topic.internal]
        return await self.views_among(names)

    async def views_among(self, names: Sequence[str]) -> list[ViewInfo]:
        """Those of the topics that are views, and that we may describe."""
        found: list[ViewInfo] = []
        for first in range(0, len(names), _TOPICS_PER_REQUEST):
            found += await self._ask(names[first : first + _TOPICS_PER_REQUEST])
        return found

    async def describe(self, name: str) -> ViewInfo:
        """One view; KafkaError if there is none of this name."""
        await self._topics.describe_topic(name)
        for view in await self._ask([name]):
            return view
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is not a view")

    async def delete(self, names: Iterable[str]) -> dict[str, ErrorCode]:
        """Delete views; the outcome of each. KafkaError, and nothing is deleted, if one is none."""
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            await self.describe(name)
        return await self._topics.delete_topics(wanted)

    async def _ask(self, names: Sequence[str]) -> list[ViewInfo]:
        resources = [
            DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE,
                resource_name=name,
                configuration_keys=[_VIEW_OF, _VIEW_FILTER, _VIEW_HELD],
            )
            for name in names
        ]
        request = DescribeConfigsRequest(resources=resources)
        response = await self._cluster.ask_any(request, DescribeConfigsResponse)
        found: list[ViewInfo] = []
        for result in response.results:
            # A topic that was deleted meanwhile, or that we may not describe, is left out.
            values = {one.name: one.value or "" for one in result.configs}
            if values.get(_VIEW_OF):
                where, held = values.get(_VIEW_FILTER, ""), values.get(_VIEW_HELD) == "true"
                found.append(ViewInfo(result.resource_name, values[_VIEW_OF], where, held))
        return found
