"""The table of topic keys, and what each one does in Tidemill. Pure.

Every topic key of Kafka 4.3 is in `TOPIC_KEYS`. It *works*; or it is *stored*, kept and shown but
without effect; or it is *refused*, with the reason. No key is silently ignored, and no key outside
the table is accepted (S35): none names a path, a class or a URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import final

from tidemill.core.config.keys import INT32_MAX, INT64_MAX, Option, OptionType, Scope, Value
from tidemill.core.limits import KIB, MIB

__all__ = ["MIN_ISR", "TOPIC_KEYS", "Effect", "TopicKey"]

MIN_ISR = "min.insync.replicas"

_DAY_MS = 24 * 3600 * 1000


class Effect(Enum):
    """What setting a key does."""

    WORKS = "works"
    STORED = "stored without effect"
    REFUSED = "refused"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKey:
    """One topic key. `reason` says why it does not work, if it does not."""

    option: Option
    effect: Effect
    reason: str = ""
    refused_values: Mapping[str, str] = field(default_factory=dict)
    """Values that Kafka knows and Tidemill does not: value -> reason."""
    broker_key: str = ""
    """The broker key that sets the default, if there is one."""

    @property
    def name(self) -> str:
        return self.option.key


def _key(
    name: str,
    default: Value,
    doc: str,
    *,
    type: OptionType | None = None,
    unit: str = "",
    minimum: int | float = 0,
    maximum: int | float = INT64_MAX,
    choices: tuple[str, ...] = (),
    effect: Effect = Effect.WORKS,
    reason: str = "",
    refused_values: Mapping[str, str] | None = None,
    broker_key: str = "",
) -> TopicKey:
    made = Option(
        key=name,
        type=type or _TYPES[default.__class__],
        default=default,
        doc=doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        scope=Scope.TOPIC,
    )
    return TopicKey(
        option=made,
        effect=effect,
        reason=reason,
        refused_values=refused_values or {},
        broker_key=broker_key,
    )


_TYPES = {
    bool: OptionType.BOOLEAN,
    int: OptionType.LONG,
    float: OptionType.DOUBLE,
    str: OptionType.STRING,
    tuple: OptionType.LIST,
}
_NO_TIERS = "there is no tiered storage"
_NO_RECOMPRESSION_LEVEL = "the broker compresses with each codec's default level"
_NO_THROTTLE = "the rates of the brokers bound every replica that catches up"

_KEYS = (
    _key(
        "cleanup.policy",
        ("delete",),
        "What happens to old records: `delete` drops whole segments by age and size, `compact` "
        "keeps the newest record of each key. Both may be set.",
        choices=("delete", "compact"),
    ),
    _key(
        "compression.gzip.level",
        -1,
        "Compression level of gzip in the broker.",
        type=OptionType.INT,
        minimum=-1,
        maximum=9,
        effect=Effect.STORED,
        reason=_NO_RECOMPRESSION_LEVEL,
    ),
    _key(
        "compression.lz4.level",
        9,
        "Compression level of lz4 in the broker.",
        type=OptionType.INT,
        minimum=1,
        maximum=17,
        effect=Effect.STORED,
        reason=_NO_RECOMPRESSION_LEVEL,
    ),
    _key(
        "compression.type",
        "producer",
        "Codec in which batches are stored; `producer` stores each batch as it was sent.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    _key(
        "compression.zstd.level",
        3,
        "Compression level of zstd in the broker.",
        type=OptionType.INT,
        minimum=-131_072,
        maximum=22,
        effect=Effect.STORED,
        reason=_NO_RECOMPRESSION_LEVEL,
    ),
    _key(
        "delete.retention.ms",
        _DAY_MS,
        "How long a compacted topic keeps the tombstone of a key after its first compaction.",
        unit="ms",
    ),
    _key(
        "file.delete.delay.ms",
        60_000,
        "Time between dropping a segment and removing its files.",
        unit="ms",
    ),
    _key(
        "flush.messages",
        INT64_MAX,
        "Unflushed records after which a flush starts, even if no answer waits for it.",
        minimum=1,
        broker_key="log.flush.interval.messages",
    ),
    _key(
        "flush.ms",
        INT64_MAX,
        "Time after which a flush of an unflushed record starts.",
        unit="ms",
        broker_key="log.flush.interval.ms",
    ),
    _key(
        "follower.replication.throttled.replicas",
        (),
        "Replicas that fetch at a limited rate, as partition:broker.",
        effect=Effect.STORED,
        reason=_NO_THROTTLE,
    ),
    _key(
        "index.interval.bytes",
        4096,
        "Log bytes between two entries of the offset index.",
        type=OptionType.INT,
        unit="bytes",
        maximum=INT32_MAX,
    ),
    _key(
        "leader.replication.throttled.replicas",
        (),
        "Replicas that are served at a limited rate, as partition:broker.",
        effect=Effect.STORED,
        reason=_NO_THROTTLE,
    ),
    _key(
        "local.retention.bytes",
        -2,
        "Size of the segments that stay on the broker when older ones are in a remote tier.",
        unit="bytes",
        minimum=-2,
        effect=Effect.STORED,
        reason=_NO_TIERS,
    ),
    _key(
        "local.retention.ms",
        -2,
        "Age of the segments that stay on the broker when older ones are in a remote tier.",
        unit="ms",
        minimum=-2,
        effect=Effect.STORED,
        reason=_NO_TIERS,
    ),
    _key(
        "max.compaction.lag.ms",
        INT64_MAX,
        "Longest time before a record of a compacted topic is compacted.",
        unit="ms",
        minimum=1,
    ),
    _key(
        "max.message.bytes",
        1 * MIB + 12,
        "Largest record batch, as sent (compressed or not).",
        type=OptionType.INT,
        unit="bytes",
        maximum=INT32_MAX,
        broker_key="message.max.bytes",
    ),
    _key(
        "message.downconversion.enable",
        True,
        "Whether old consumers get records in older formats.",
        effect=Effect.STORED,
        reason="only the current record format is served, as in Kafka 4",
    ),
    _key(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a record's timestamp may be ahead of the broker's clock.",
        unit="ms",
    ),
    _key(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        "How far a record's timestamp may be behind the broker's clock.",
        unit="ms",
    ),
    _key(
        "message.timestamp.type",
        "CreateTime",
        "Which clock sets the timestamp of records: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    _key(
        "min.cleanable.dirty.ratio",
        0.5,
        "Share of uncompacted bytes at which a log is compacted.",
        maximum=1,
    ),
    _key(
        "min.compaction.lag.ms",
        0,
        "Time before a record may be compacted away.",
        unit="ms",
    ),
    _key(
        MIN_ISR,
        1,
        "In-sync replicas needed for a produce request with acks=all.",
        type=OptionType.INT,
        minimum=1,
        maximum=32_767,
        broker_key=MIN_ISR,
    ),
    _key(
        "preallocate",
        False,
        "Whether a new segment allocates its space at once.",
        effect=Effect.STORED,
        reason="segments grow as they are written",
    ),
    _key(
        "remote.log.copy.disable",
        False,
        "Whether segments are no longer copied to the remote tier.",
        effect=Effect.STORED,
        reason=_NO_TIERS,
    ),
    _key(
        "remote.log.delete.on.disable",
        False,
        "Whether the remote tier is emptied when it is turned off.",
        effect=Effect.STORED,
        reason=_NO_TIERS,
    ),
    _key(
        "remote.storage.enable",
        False,
        "Whether old segments are moved to a remote tier.",
        effect=Effect.REFUSED,
        reason=f"{_NO_TIERS}, and accepting the key would lose data",
        refused_values={"true": _NO_TIERS},
    ),
    _key(
        "retention.bytes",
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 sets no limit.",
        unit="bytes",
        minimum=-1,
        broker_key="log.retention.bytes",
    ),
    _key(
        "retention.ms",
        14 * _DAY_MS,
        "Age at which segments are deleted; -1 keeps them forever.",
        unit="ms",
        minimum=-1,
        broker_key="log.retention.ms",
    ),
    _key(
        "segment.bytes",
        1024 * MIB,
        "Size at which a segment is closed and the next one begins.",
        type=OptionType.INT,
        unit="bytes",
        minimum=1 * KIB,
        maximum=INT32_MAX,
        broker_key="log.segment.bytes",
    ),
    _key(
        "segment.index.bytes",
        10 * MIB,
        "Space for the index of a segment.",
        type=OptionType.INT,
        unit="bytes",
        minimum=4,
        maximum=INT32_MAX,
        effect=Effect.STORED,
        reason="indexes grow as they are needed",
    ),
    _key(
        "segment.jitter.ms",
        0,
        "Random part of `segment.ms`, so that segments do not all roll at once.",
        unit="ms",
        effect=Effect.STORED,
        reason="rolling is cheap enough not to need spreading",
    ),
    _key(
        "segment.ms",
        7 * _DAY_MS,
        "Age at which a segment is closed even if it is not full.",
        unit="ms",
        minimum=1,
        broker_key="log.roll.ms",
    ),
    _key(
        "tidemill.delay.default.ms",
        0,
        "How long a record is held that names no time of its own: a topic for retries. 0 for not "
        "at all.",
        unit="ms",
    ),
    _key(
        "tidemill.delay.enable",
        True,
        "Whether records may be held until a time that their headers name. Never on a topic with "
        "`cleanup.policy=compact`.",
    ),
    _key(
        "tidemill.delay.max.ms",
        400 * _DAY_MS,
        "How far ahead a record may be delivered.",
        unit="ms",
    ),
    _key(
        "tidemill.delay.max.pending",
        10_000_000,
        "Held records of a partition; more are refused.",
    ),
    _key(
        "tidemill.delay.max.pending.bytes",
        16 * 1024 * MIB,
        "Size of the held records of a partition; more are refused.",
        unit="bytes",
    ),
    _key(
        "tidemill.flush",
        "group",
        "What acks=all waits for: `group` for the disk of every in-sync replica, `os` for the page "
        "cache of every in-sync replica, which is lost if all of them lose power at once.",
        choices=("group", "os"),
        broker_key="tidemill.flush",
    ),
    _key(
        "tidemill.read.from",
        "selector",
        "Which replica clients read from that name their rack: the `leader`; the `nearest`, an "
        "in-sync replica in the same rack, else the leader; `followers`, an in-sync follower, in "
        "the same rack if there is one; `selector`, as `replica.selector.class` says.",
        choices=("selector", "leader", "nearest", "followers"),
    ),
    _key(
        "tidemill.view.filter",
        "",
        "Of a view: the selector that its records match, by headers, key, time or partition; empty "
        "for all records.",
    ),
    _key(
        "tidemill.view.held",
        False,
        "Of a view: whether it shows the records of its base that are held, each until it is "
        "delivered or cancelled, instead of those that are delivered. It cannot be changed.",
    ),
    _key(
        "tidemill.view.of",
        "",
        "Makes a new topic a view: it has no records of its own and shows those of this topic that "
        "match `tidemill.view.filter`. It cannot be changed.",
    ),
    _key(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is not in sync may lead when no other one is left; this can lose "
        "records.",
    ),
)

TOPIC_KEYS: Mapping[str, TopicKey] = MappingProxyType({key.name: key for key in _KEYS})
