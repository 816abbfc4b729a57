"""The keys that can be set for one consumer group, and what they come to. Pure.

A group without an override uses the broker key that `GroupKey.broker_key` names. What can be set is
limited by two more broker keys, so that one group cannot make its members a burden for the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, final

from tidemill.core.config.group_config import GroupConfig
from tidemill.core.config.keys import Option, OptionType, nearest_key_hint, options_of
from tidemill.core.errors import ErrorCode, KafkaError

__all__ = [
    "GROUP_KEYS",
    "ConsumerTimeouts",
    "GroupKey",
    "check_group_overrides",
    "consumer_timeouts",
    "group_option",
]

_SESSION = "consumer.session.timeout.ms"
_HEARTBEAT = "consumer.heartbeat.interval.ms"
_KEY_CHARS_SHOWN_MAX = 80
_FIELDS = {made.key: name for name, made in options_of(GroupConfig).items()}
_OPTIONS = {made.key: made for made in options_of(GroupConfig).values()}

_REFUSED = {
    "consumer.assignment.interval.ms": "assignments are made at once, without an interval",
    "share.": "there are no share groups",
    "streams.": "there are no streams groups",
}
"""Keys of Kafka, or the beginnings of their names, with the reason why they cannot be set."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKey:
    """One key of a group, with the broker keys for its default and its range."""

    option: Option
    broker_key: str
    minimum_key: str
    maximum_key: str

    def check(self, value: int, config: GroupConfig) -> None:
        """KafkaError INVALID_CONFIG if the broker's limits do not allow the value."""
        low, high = _value(config, self.minimum_key), _value(config, self.maximum_key)
        if not low <= value <= high:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{self.option.key}={value} is not in {low} ({self.minimum_key}) to {high} "
                f"({self.maximum_key})",
            )


def _value(config: GroupConfig, key: str) -> int:
    value: int = getattr(config, _FIELDS[key])
    return value


def _key(name: str, of: str, doc: str) -> GroupKey:
    """The key `consumer.<of>`; its broker keys differ from it in their beginning only."""
    broker_key = f"group.consumer.{of}"
    option = Option(
        key=name,
        type=OptionType.INT,
        default=_OPTIONS[broker_key].default,
        doc=doc,
        unit="ms",
        minimum=1,
    )
    return GroupKey(
        option=option,
        broker_key=broker_key,
        minimum_key=f"group.consumer.min.{of}",
        maximum_key=f"group.consumer.max.{of}",
    )


GROUP_KEYS: Mapping[str, GroupKey] = MappingProxyType(
    {
        _HEARTBEAT: _key(
            _HEARTBEAT,
            "heartbeat.interval.ms",
            "Interval at which the group's members are told to send heartbeats.",
        ),
        _SESSION: _key(
            _SESSION,
            "session.timeout.ms",
            "A member of the group is removed after this long without a heartbeat.",
        ),
    }
)


def group_option(name: str) -> Option:
    """The option of a group's key; KafkaError INVALID_CONFIG if there is no such key."""
    key = GROUP_KEYS.get(name)
    if key is not None:
        return key.option
    for start, reason in _REFUSED.items():
        if name.startswith(start):
            detail = f"{name[:_KEY_CHARS_SHOWN_MAX]} cannot be set: {reason}"
            raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    shown = ascii(name[:_KEY_CHARS_SHOWN_MAX])
    detail = f"unknown group key {shown}{nearest_key_hint(name, GROUP_KEYS)}"
    raise KafkaError(ErrorCode.INVALID_CONFIG, detail)


def check_group_overrides(overrides: Mapping[str, str], config: GroupConfig) -> None:
    """KafkaError INVALID_CONFIG unless the values are in range and fit together."""
    for name, text in overrides.items():
        GROUP_KEYS[name].check(int(text), config)
    session_ms, heartbeat_ms = _effective(overrides, config)
    if heartbeat_ms >= session_ms:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{_HEARTBEAT}={heartbeat_ms} must be less than {_SESSION}={session_ms}",
        )


@final
class ConsumerTimeouts(NamedTuple):
    """What the members of one group of the consumer protocol are held to."""

    session_ms: int
    heartbeat_ms: int


def consumer_timeouts(overrides: Mapping[str, str], config: GroupConfig) -> ConsumerTimeouts:
    """The group's own timeouts, else the broker's."""
    session_ms, heartbeat_ms = _effective(overrides, config)
    if heartbeat_ms >= session_ms:
        # The broker's value has changed since the group's was checked against it.
        heartbeat_ms = max(1, session_ms // 2)
    return ConsumerTimeouts(session_ms, heartbeat_ms)


def _effective(overrides: Mapping[str, str], config: GroupConfig) -> tuple[int, int]:
    session, heartbeat = overrides.get(_SESSION), overrides.get(_HEARTBEAT)
    return (
        config.group_consumer_session_timeout_ms if session is None else int(session),
        config.group_consumer_heartbeat_interval_ms if heartbeat is None else int(heartbeat),
    )
