"""Configuration that was set at run time for brokers and groups: whose it is, and what may be set.
Pure.

A broker key can be set at run time only if it is `dynamic`. That is the whole allow-list (S35), and
no such key names a path, a class or a URL. A dynamic key that every broker must agree on is set for
all brokers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import Option, Scope, nearest_key_hint, options_of
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.group_keys import group_option
from tidemill.metadata.image.topic_config import AlterOp, changed_values, checked_value

__all__ = [
    "ALL_BROKERS",
    "DRAINING",
    "ConfigOwner",
    "OwnerKind",
    "StoredOverrides",
    "broker_owner",
    "changed_overrides",
    "group_owner",
    "readable_overrides",
]

DRAINING = "tidemill.broker.draining"
_BROKER_OPTIONS = {option.key: option for option in options_of(BrokerConfig).values()}
_KEY_CHARS_SHOWN_MAX = 80


class OwnerKind(StrEnum):
    """What can have overrides, apart from topics."""

    BROKER = "broker"
    GROUP = "group"


@final
class ConfigOwner(NamedTuple):
    """A broker by its id, all brokers, or a group by its name."""

    kind: OwnerKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"every {self.kind}"


ALL_BROKERS = ConfigOwner(OwnerKind.BROKER, "")
"""The defaults of all brokers; those of one broker win."""


def broker_owner(broker_id: int) -> ConfigOwner:
    return ConfigOwner(OwnerKind.BROKER, str(broker_id))


def group_owner(group_id: str) -> ConfigOwner:
    return ConfigOwner(OwnerKind.GROUP, group_id)


@final
@dataclass(frozen=True, slots=True)
class StoredOverrides:
    """The overrides of one owner, checked and in normal form."""

    values: Mapping[str, str]
    unread: Mapping[str, str] = field(default_factory=dict)
    """Keys that this version does not understand; they are stored again as they are."""


def changed_overrides(
    owner: ConfigOwner,
    before: Mapping[str, str],
    changes: Iterable[tuple[str, AlterOp, str | None]],
) -> dict[str, str]:
    """The owner's overrides after the changes, each checked by itself; KafkaError if refused."""
    after = changed_values(before, changes, lambda name: _option(owner, name))
    return {name: _checked(owner, name, text) for name, text in sorted(after.items())}


def readable_overrides(
    owner: ConfigOwner, stored: Mapping[str, str], alarm: Callable[[str], None]
) -> StoredOverrides:
    """The stored overrides; an alarm for each that this version does not understand."""
    readable: dict[str, str] = {}
    unread: dict[str, str] = {}
    for name, text in sorted(stored.items()):
        try:
            readable[name] = _checked(owner, name, text)
        except KafkaError as error:
            unread[name] = text
            alarm(f"configuration of {str(owner)!a}: {error.detail}; ignored")
    return StoredOverrides(readable, unread)


def _checked(owner: ConfigOwner, name: str, text: str | None) -> str:
    option = _option(owner, name)
    return option.render(checked_value(option, text))


def _option(owner: ConfigOwner, name: str) -> Option:
    """The option of a key that can be set for `owner`; KafkaError INVALID_CONFIG says why not."""
    if owner.kind is OwnerKind.GROUP:
        return group_option(name)
    option = _BROKER_OPTIONS.get(name)
    if option is None:
        shown = ascii(name[:_KEY_CHARS_SHOWN_MAX])
        detail = f"unknown broker key {shown}{nearest_key_hint(name, _BROKER_OPTIONS)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    if not option.dynamic:
        detail = f"{name} is read when a broker starts: set it in the file and restart"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    if option.scope is Scope.CLUSTER and owner != ALL_BROKERS:
        detail = f"{name} is the same on every broker: set it for all brokers (the empty name)"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    return option
