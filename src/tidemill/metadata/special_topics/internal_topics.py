"""Internal topics: who makes them, with which settings, and which settings must never change. Pure.

Each internal topic holds the state of one coordinator. Only that coordinator makes it, because a
topic with ordinary settings loses the state: `cleanup.policy=delete` drops committed offsets by
age. For the same reason no client may give it a setting that loses state, and the controller mends
a stored topic that has one. The number of partitions stays what it is: groups, transactions and
share groups are found by a hash over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import OFFSETS_BATCH_BYTES_MAX, TRANSACTIONS_BATCH_BYTES_MAX
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)

__all__ = [
    "checked_internal",
    "internal_overrides",
    "internal_partitions",
    "internal_replicas",
    "mended_overrides",
    "wrong_keys",
]


@final
@dataclass(frozen=True, slots=True)
class _Settings:
    """What must hold of an internal topic's keys; each is set, so that no default applies."""

    exact: Mapping[str, str]
    at_least: Mapping[str, int] = field(default_factory=dict)


_SETTINGS: Mapping[str, _Settings] = MappingProxyType(
    {
        OFFSETS_TOPIC: _Settings(
            {"cleanup.policy": "compact"}, {"max.message.bytes": OFFSETS_BATCH_BYTES_MAX}
        ),
        TRANSACTION_STATE_TOPIC: _Settings(
            {"cleanup.policy": "compact"}, {"max.message.bytes": TRANSACTIONS_BATCH_BYTES_MAX}
        ),
        # Its coordinator deletes records by offset, when no share group needs them.
        SHARE_STATE_TOPIC: _Settings(
            {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
        ),
    }
)


def internal_partitions(name: str, config: BrokerConfig) -> int:
    """The partitions of a new topic; KafkaError if this broker has no coordinator for it."""
    _check_coordinated(name)
    if name == TRANSACTION_STATE_TOPIC:
        return config.transactions.transaction_state_log_num_partitions
    return config.groups.offsets_topic_num_partitions


def internal_replicas(name: str, config: BrokerConfig, brokers: int) -> int:
    """The replicas of a new topic: as many as configured, or as there are live brokers."""
    _check_coordinated(name)
    if name == TRANSACTION_STATE_TOPIC:
        return min(config.transactions.transaction_state_log_replication_factor, brokers)
    return min(config.groups.offsets_topic_replication_factor, brokers)


def internal_overrides(name: str, config: BrokerConfig) -> dict[str, str]:
    """The keys of a new topic."""
    settings = _SETTINGS[name]
    made = {**settings.exact, **{key: str(least) for key, least in settings.at_least.items()}}
    if name == OFFSETS_TOPIC:
        made["segment.bytes"] = str(config.groups.offsets_topic_segment_bytes)
    if name == TRANSACTION_STATE_TOPIC:
        segment_bytes = config.transactions.transaction_state_log_segment_bytes
        made["segment.bytes"] = str(segment_bytes)
    return made


def wrong_keys(name: str, overrides: Mapping[str, str]) -> list[str]:
    """The keys whose values lose the state in the topic, or that are not set."""
    settings = _SETTINGS[name]
    wrong = [key for key, value in settings.exact.items() if overrides.get(key) != value]
    wrong += [
        key for key, least in settings.at_least.items() if int(overrides.get(key, -1)) < least
    ]
    return wrong


def mended_overrides(
    name: str, overrides: Mapping[str, str], config: BrokerConfig
) -> dict[str, str]:
    """The overrides with the coordinator's value for each key that is wrong or not set."""
    wrong = wrong_keys(name, overrides)
    kept = {key: value for key, value in overrides.items() if key not in wrong}
    return {**internal_overrides(name, config), **kept}


def checked_internal(
    name: str, overrides: Mapping[str, str], config: BrokerConfig
) -> dict[str, str]:
    """Overrides that a client asks for: an unset key gets the coordinator's value, not the default.

    KafkaError INVALID_CONFIG for a value that loses state.
    """
    filled = {**internal_overrides(name, config), **overrides}
    for key in wrong_keys(name, filled):
        detail = f"{key}={filled[key]} would lose the state that the broker keeps in {name}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    return filled


def _check_coordinated(name: str) -> None:
    if name == SHARE_STATE_TOPIC:
        detail = f"{name} is made by its coordinator, which this broker does not have yet"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
