"""Configuration as DescribeConfigs shows it: each key with value, source and synonyms (T56). Pure.

The synonyms of a key are all values that could apply, the one in force first:

    set for the topic or the group
    set at run time for this broker       DYNAMIC_BROKER
    set at run time for all brokers       DYNAMIC_DEFAULT_BROKER
    set when the broker was started       STATIC_BROKER
    built in                              DEFAULT
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import TypeVar, final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import Option, options_of
from tidemill.core.config.live_config import LiveConfig
from tidemill.metadata.image.group_keys import GROUP_KEYS
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.metadata.image.topic_keys import MIN_ISR, TOPIC_KEYS, Effect, TopicKey

__all__ = [
    "ConfigSource",
    "DescribedKey",
    "describe_all_brokers",
    "describe_broker",
    "describe_group",
    "describe_topic",
]


class ConfigSource(IntEnum):
    """Where a value comes from; the numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


Row = TypeVar("Row")
Synonym = tuple[str, str, ConfigSource]
"""Key, value, source."""

_BROKER_FIELDS = {option.key: (name, option) for name, option in options_of(BrokerConfig).items()}


@final
@dataclass(slots=True)
class DescribedKey:
    """One key as DescribeConfigs shows it (T56)."""

    option: Option
    synonyms: list[Synonym]
    """The effective one first."""
    doc: str
    read_only: bool = False

    @property
    def value(self) -> str:
        return self.synonyms[0][1]

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0][2]


def describe_topic(
    topic: TopicImage, config: LiveConfig, only: Iterable[str] | None = None
) -> list[DescribedKey]:
    """A topic's keys: the existing keys of `only`, or all keys.

    A minimum that the topic has kept although the default is another one now counts as its own.
    """
    overrides = topic.overrides
    if topic.min_isr != topic.config.min_insync_replicas:
        overrides = {**overrides, MIN_ISR: str(topic.min_isr)}
    return [
        DescribedKey(key.option, _topic_synonyms(key, overrides.get(name), config), _doc(key))
        for name, key in _wanted(TOPIC_KEYS, only)
    ]


def describe_group(
    overrides: Mapping[str, str], config: LiveConfig, only: Iterable[str] | None = None
) -> list[DescribedKey]:
    """A group's keys; a group that does not exist has them too."""
    found: list[DescribedKey] = []
    for name, key in _wanted(GROUP_KEYS, only):
        own = _own(name, overrides.get(name), ConfigSource.DYNAMIC_GROUP)
        synonyms = own + _broker_synonyms(key.broker_key, config)
        found.append(DescribedKey(key.option, synonyms, key.option.doc))
    return found


def describe_broker(config: LiveConfig, only: Iterable[str] | None = None) -> list[DescribedKey]:
    """All keys of this broker."""
    return [
        DescribedKey(
            option, _broker_synonyms(key, config), option.doc, read_only=not option.dynamic
        )
        for key, (_, option) in _wanted(_BROKER_FIELDS, only)
    ]


def describe_all_brokers(
    overrides: Mapping[str, str], only: Iterable[str] | None = None
) -> list[DescribedKey]:
    """What was set for all brokers at run time, and nothing else, as in Kafka."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    return [
        DescribedKey(option, _own(key, overrides[key], source), option.doc)
        for key, (_, option) in _wanted(_BROKER_FIELDS, only)
        if key in overrides
    ]


def _wanted(table: Mapping[str, Row], only: Iterable[str] | None) -> list[tuple[str, Row]]:
    if only is None:
        return list(table.items())
    return [(name, table[name]) for name in sorted(set(only) & set(table))]


def _own(name: str, value: str | None, source: ConfigSource) -> list[Synonym]:
    return [] if value is None else [(name, value, source)]


def _topic_synonyms(key: TopicKey, override: str | None, config: LiveConfig) -> list[Synonym]:
    own = _own(key.name, override, ConfigSource.DYNAMIC_TOPIC)
    if key.broker_key:
        return own + _broker_synonyms(key.broker_key, config)
    built_in = key.option.render(key.option.default)
    return [*own, (key.name, built_in, ConfigSource.DEFAULT)]


def _broker_synonyms(key: str, config: LiveConfig) -> list[Synonym]:
    field, option = _BROKER_FIELDS[key]
    synonyms = [
        *_own(key, config.own_overrides.get(key), ConfigSource.DYNAMIC_BROKER),
        *_own(key, config.cluster_overrides.get(key), ConfigSource.DYNAMIC_DEFAULT_BROKER),
    ]
    static = attrgetter(field)(config.static)
    if static != option.parse(option.default):
        synonyms.append((key, option.render(static), ConfigSource.STATIC_BROKER))
    synonyms.append((key, option.render(option.default), ConfigSource.DEFAULT))
    return synonyms


def _doc(key: TopicKey) -> str:
    if key.effect is Effect.WORKS:
        return key.option.doc
    return f"{key.option.doc} ({key.effect.value}: {key.reason})"
