"""The broker keys that are defaults of topic keys; a section of `BrokerConfig`. Pure.

`metadata/image/topic_keys.py` says which topic key each one belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import INT64_MAX, option
from tidemill.core.limits import KIB, MIB

__all__ = ["TopicDefaults"]

_DAY_MS = 24 * 3600 * 1000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """The defaults of topic keys; a field has the name of its key."""

    tidemill_flush: str = option(
        "group",
        key="tidemill.flush",
        dynamic=True,
        doc="Default of the topic key `tidemill.flush`: `group` answers acks=all when the batch is "
        "on disk, `os` when it is in the page cache.",
        choices=("group", "os"),
    )
    log_flush_interval_messages: int = option(
        INT64_MAX,
        key="log.flush.interval.messages",
        dynamic=True,
        doc="Default of the topic key `flush.messages`.",
        minimum=1,
        maximum=INT64_MAX,
    )
    log_flush_interval_ms: int = option(
        INT64_MAX,
        key="log.flush.interval.ms",
        dynamic=True,
        doc="Default of the topic key `flush.ms`.",
        unit="ms",
        maximum=INT64_MAX,
    )
    log_retention_ms: int = option(
        14 * _DAY_MS,
        key="log.retention.ms",
        dynamic=True,
        doc="Default of the topic key `retention.ms`; -1 keeps records forever.",
        unit="ms",
        minimum=-1,
        maximum=INT64_MAX,
    )
    log_retention_bytes: int = option(
        -1,
        key="log.retention.bytes",
        dynamic=True,
        doc="Default of the topic key `retention.bytes`; -1 sets no limit.",
        unit="bytes",
        minimum=-1,
        maximum=INT64_MAX,
    )
    log_segment_bytes: int = option(
        1024 * MIB,
        key="log.segment.bytes",
        dynamic=True,
        doc="Default of the topic key `segment.bytes`.",
        unit="bytes",
        minimum=1 * KIB,
    )
    log_roll_ms: int = option(
        7 * _DAY_MS,
        key="log.roll.ms",
        dynamic=True,
        doc="Default of the topic key `segment.ms`.",
        unit="ms",
        minimum=1,
        maximum=INT64_MAX,
    )
    message_max_bytes: int = option(
        1 * MIB + 12,
        key="message.max.bytes",
        dynamic=True,
        doc="Default of the topic key `max.message.bytes`.",
        unit="bytes",
    )
    min_insync_replicas: int = option(
        1,
        key="min.insync.replicas",
        doc="Default of the topic key `min.insync.replicas`.",
        minimum=1,
        maximum=32_767,
    )
