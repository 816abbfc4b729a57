"""A topic's configuration: its overrides checked, resolved and changed. Pure.

`resolve` turns a topic's overrides into a `TopicConfig` once, when the image changes, so that
produce and fetch read plain attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import Option, OptionType, Value, nearest_key_hint, options_of
from tidemill.core.config.topic_defaults import TopicDefaults
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.topic_keys import TOPIC_KEYS, TopicKey

__all__ = [
    "AlterOp",
    "TopicConfig",
    "altered_overrides",
    "changed_values",
    "checked_overrides",
    "checked_value",
    "resolve",
    "topic_defaults",
]

_OVERRIDES_MAX = 128
"""More keys than exist; bounds the work for one request."""
_TEXT_CHARS_SHOWN_MAX = 80


def _default(name: str) -> Any:  # noqa: ANN401 - typed by its field
    return TOPIC_KEYS[name].option.default


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The values of all keys that have an effect, for one topic."""

    cleanup_policy: tuple[str, ...] = _default("cleanup.policy")
    compression_type: str = _default("compression.type")
    delete_retention_ms: int = _default("delete.retention.ms")
    file_delete_delay_ms: int = _default("file.delete.delay.ms")
    flush_messages: int = _default("flush.messages")
    flush_ms: int = _default("flush.ms")
    index_interval_bytes: int = _default("index.interval.bytes")
    max_compaction_lag_ms: int = _default("max.compaction.lag.ms")
    max_message_bytes: int = _default("max.message.bytes")
    message_timestamp_after_max_ms: int = _default("message.timestamp.after.max.ms")
    message_timestamp_before_max_ms: int = _default("message.timestamp.before.max.ms")
    message_timestamp_type: str = _default("message.timestamp.type")
    min_cleanable_dirty_ratio: float = _default("min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = _default("min.compaction.lag.ms")
    min_insync_replicas: int = _default("min.insync.replicas")
    retention_bytes: int = _default("retention.bytes")
    retention_ms: int = _default("retention.ms")
    segment_bytes: int = _default("segment.bytes")
    segment_ms: int = _default("segment.ms")
    tidemill_delay_default_ms: int = _default("tidemill.delay.default.ms")
    tidemill_delay_enable: bool = _default("tidemill.delay.enable")
    tidemill_delay_max_ms: int = _default("tidemill.delay.max.ms")
    tidemill_delay_max_pending: int = _default("tidemill.delay.max.pending")
    tidemill_delay_max_pending_bytes: int = _default("tidemill.delay.max.pending.bytes")
    tidemill_flush: str = _default("tidemill.flush")
    tidemill_read_from: str = _default("tidemill.read.from")
    tidemill_view_filter: str = _default("tidemill.view.filter")
    tidemill_view_held: bool = _default("tidemill.view.held")
    tidemill_view_of: str = _default("tidemill.view.of")
    unclean_leader_election_enable: bool = _default("unclean.leader.election.enable")

    @property
    def compacts(self) -> bool:
        """Whether only the newest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def flush_group(self) -> bool:
        """Whether acks=all waits for the disk."""
        return self.tidemill_flush == "group"

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's clock sets the timestamp of records."""
        return self.message_timestamp_type == "LogAppendTime"


_FIELDS = {name: name.replace(".", "_") for name in TOPIC_KEYS}
_EFFECTIVE = frozenset(TopicConfig.__dataclass_fields__)
_DELAY_DEFAULT = "tidemill.delay.default.ms"
_BROKER_FIELDS = {made.key: name for name, made in options_of(TopicDefaults).items()}


def checked_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """A topic's overrides, checked and in normal form; KafkaError INVALID_CONFIG."""
    if len(overrides) > _OVERRIDES_MAX:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"more than {_OVERRIDES_MAX} keys")
    checked = {name: _checked(name, text) for name, text in sorted(overrides.items())}
    _refuse_delay(checked)
    return checked


def _refuse_delay(checked: Mapping[str, str]) -> None:
    """A topic that holds nothing cannot hold everything."""
    if checked.get(_DELAY_DEFAULT, "0") == "0":
        return
    if "compact" in checked.get("cleanup.policy", ""):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{_DELAY_DEFAULT}: a compacted topic has none")
    if checked.get("tidemill.delay.enable") == "false":
        detail = f"{_DELAY_DEFAULT} needs tidemill.delay.enable"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)


def _known(name: str) -> TopicKey:
    key = TOPIC_KEYS.get(name)
    if key is None:
        shown = ascii(name[:_TEXT_CHARS_SHOWN_MAX])
        detail = f"unknown topic key {shown}{nearest_key_hint(name, TOPIC_KEYS)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    return key


def _checked(name: str, text: str | None) -> str:
    key = _known(name)
    value = checked_value(key.option, text)
    _refuse(key, value)
    return key.option.render(value)


def checked_value(option: Option, text: str | None) -> Value:
    """The value that `text` stands for; KafkaError INVALID_CONFIG."""
    if text is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{option.key} needs a value")
    try:
        return option.parse(text)
    except ValueError as err:
        detail = f"{option.key}={text[:_TEXT_CHARS_SHOWN_MAX]!a}: expected {err}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail) from None


def _refuse(key: TopicKey, value: Value) -> None:
    if value == () and key.option.choices:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{key.name} needs a value")
    for part in value if isinstance(value, tuple) else (key.option.render(value),):
        reason = key.refused_values.get(part)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{key.name}={part}: {reason}")


class AlterOp(IntEnum):
    """An operation of IncrementalAlterConfigs on one key (T57)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def altered_overrides(
    overrides: Mapping[str, str], changes: Iterable[tuple[str, AlterOp, str | None]]
) -> dict[str, str]:
    """The overrides after the changes, all checked; each key may change once."""
    return checked_overrides(changed_values(overrides, changes, lambda name: _known(name).option))


def changed_values(
    overrides: Mapping[str, str],
    changes: Iterable[tuple[str, AlterOp, str | None]],
    option_of: Callable[[str], Option],
) -> dict[str, str | None]:
    """The overrides after the changes, unchecked; `option_of` refuses keys that cannot change."""
    result: dict[str, str | None] = dict(overrides)
    seen: set[str] = set()
    for name, op, text in changes:
        option = option_of(name)
        if name in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} changes twice")
        seen.add(name)
        _alter(result, option, op, text)
    return result


def _alter(result: dict[str, str | None], option: Option, op: AlterOp, text: str | None) -> None:
    match op:
        case AlterOp.SET:
            result[option.key] = text
        case AlterOp.DELETE:
            result.pop(option.key, None)
        case AlterOp.APPEND | AlterOp.SUBTRACT:
            result[option.key] = _altered_list(result.get(option.key), option, op, text)


def _altered_list(now: str | None, option: Option, op: AlterOp, text: str | None) -> str:
    if option.type is not OptionType.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{option.key} is not a list")
    old = (option.render(option.default) if now is None else now).split(",")
    changed = [item.strip() for item in (text or "").split(",")]
    if op is AlterOp.APPEND:
        items = [*old, *(item for item in changed if item not in old)]
    else:
        items = [item for item in old if item not in changed]
    return ",".join(item for item in items if item)


def topic_defaults(config: BrokerConfig) -> TopicConfig:
    """The configuration of a topic without overrides on this broker."""
    values = {
        _FIELDS[key.name]: getattr(config.topic_defaults, _BROKER_FIELDS[key.broker_key])
        for key in TOPIC_KEYS.values()
        if key.broker_key
    }
    return TopicConfig(**values)


def resolve(overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """A topic's configuration from `checked_overrides`; `defaults` itself if there are none."""
    values: dict[str, Any] = {
        _FIELDS[name]: TOPIC_KEYS[name].option.parse(text)
        for name, text in overrides.items()
        if _FIELDS[name] in _EFFECTIVE
    }
    return replace(defaults, **values) if values else defaults
