"""Features, for an administrator: which levels are finalized, which each broker supports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, final

from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import ClientError, check
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.generated.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

__all__ = [
    "ClusterFeatures",
    "LevelDirection",
    "SupportedLevels",
    "change_levels",
    "describe_features",
    "finalized_levels",
]

_ASK = ApiVersionsRequest(client_software_name="tidemill", client_software_version="admin")


class LevelDirection(Enum):
    """In which direction levels may change, by its number in the protocol."""

    UP = 1
    DOWN = 2


@final
class SupportedLevels(NamedTuple):
    """The levels of a feature that one broker supports."""

    lowest: int
    highest: int


@final
@dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """The features of a cluster at one moment."""

    epoch: int
    """Rises with every change of a level."""
    levels: Mapping[str, int]
    """The finalized ones, by feature; one that is off is missing."""
    supported: Mapping[int, Mapping[str, SupportedLevels]]
    """By broker, of those that answer, and feature."""

    def names(self) -> list[str]:
        found = {name for one in self.supported.values() for name in one}
        return sorted(found | self.levels.keys())

    def level_of(self, name: str) -> int:
        return self.levels.get(name, 0)

    def highest(self, name: str) -> int:
        """The highest level that any broker supports."""
        return max((one[name].highest for one in self.supported.values() if name in one), default=0)

    def unable(self, name: str, level: int) -> list[int]:
        """The brokers that do not support a level."""
        off = SupportedLevels(0, 0)
        found = {broker_id: one.get(name, off) for broker_id, one in self.supported.items()}
        return sorted(one for one, (low, high) in found.items() if not low <= level <= high)


async def describe_features(cluster: ClusterClient) -> ClusterFeatures:
    """What all brokers that answer say of features; levels by whoever knows the newest."""
    await cluster.refresh([])
    answers: dict[int, ApiVersionsResponse] = {}
    for broker_id in sorted(cluster.metadata.brokers):
        with suppress(ClientError, KafkaError):
            answers[broker_id] = await cluster.ask_broker(broker_id, _ASK, ApiVersionsResponse)
    if not answers:
        raise ClientError("no broker names its features")
    newest = max(answers.values(), key=lambda one: one.finalized_features_epoch)
    return ClusterFeatures(
        newest.finalized_features_epoch,
        _levels(newest),
        {
            broker_id: {
                one.name: SupportedLevels(one.min_version, one.max_version)
                for one in answer.supported_features
            }
            for broker_id, answer in answers.items()
        },
    )


async def finalized_levels(cluster: ClusterClient) -> dict[str, int]:
    """The finalized levels of all features that are on, as some broker knows them."""
    return _levels(await cluster.ask_any(_ASK, ApiVersionsResponse))


def _levels(answer: ApiVersionsResponse) -> dict[str, int]:
    return {one.name: one.max_version_level for one in answer.finalized_features}


async def change_levels(
    cluster: ClusterClient,
    levels: Mapping[str, int],
    direction: LevelDirection,
    *,
    dry_run: bool = False,
) -> None:
    """Change finalized levels, all of them or none. Raises KafkaError, which says why not."""
    request = UpdateFeaturesRequest(
        timeout_ms=int(cluster.request_timeout_s * 1000),
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=direction.value)
            for name, level in levels.items()
        ],
        validate_only=dry_run,
    )

    async def ask() -> None:
        response = await cluster.ask_controller(request, UpdateFeaturesResponse)
        check(response.error_code, response.error_message or "no level was changed")
        for one in response.results:
            check(one.error_code, one.error_message or f"{one.feature} was not changed")

    await retry_refusals(ask, {ErrorCode.NOT_CONTROLLER})
