"""The keys of consumer groups and of the topic that holds their state. Pure.

A section of `BrokerConfig` that the group coordinator gets as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import INT64_MAX, Scope, option
from tidemill.core.errors import UserError
from tidemill.core.limits import KIB, MIB

__all__ = ["GroupConfig"]

_ASSIGNORS = frozenset({"range", "uniform"})
_RANGES = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
)
"""Pairs of keys that are the ends of a range."""


def _field(key: str) -> str:
    return key.replace(".", "_")


_MIGRATION_POLICIES = ("bidirectional", "disabled", "downgrade", "upgrade")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The keys of consumer groups; a field has the name of its key."""

    # --- `__consumer_offsets` --------------------------------------------------------------------
    offsets_topic_num_partitions: int = option(
        50,
        key="offsets.topic.num.partitions",
        doc="Partitions of `__consumer_offsets`; fixed once the topic exists.",
        scope=Scope.CLUSTER,
        minimum=1,
        maximum=10_000,
    )
    offsets_topic_replication_factor: int = option(
        3,
        key="offsets.topic.replication.factor",
        doc="Replicas of `__consumer_offsets`; fewer while there are "
        "fewer brokers. It gets more when brokers join.",
        scope=Scope.CLUSTER,
        minimum=1,
        maximum=32_767,
    )
    offsets_topic_segment_bytes: int = option(
        100 * MIB,
        key="offsets.topic.segment.bytes",
        doc="Segment size of `__consumer_offsets`; smaller segments load faster.",
        scope=Scope.CLUSTER,
        unit="bytes",
        minimum=1 * KIB,
    )

    # --- committed offsets -----------------------------------------------------------------------
    offsets_retention_minutes: int = option(
        10_080,
        key="offsets.retention.minutes",
        dynamic=True,
        doc="How long the offsets of a group are kept after its last member has left.",
        unit="min",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = option(
        600_000,
        key="offsets.retention.check.interval.ms",
        dynamic=True,
        doc="How often the broker looks for expired offsets.",
        unit="ms",
        minimum=1,
        maximum=INT64_MAX,
    )
    offsets_commit_timeout_ms: int = option(
        5_000,
        key="offsets.commit.timeout.ms",
        dynamic=True,
        doc="How long a coordinator waits for its records to be committed before it answers.",
        unit="ms",
        minimum=1,
    )
    offset_metadata_max_bytes: int = option(
        4_096,
        key="offset.metadata.max.bytes",
        dynamic=True,
        doc="Longest text that a consumer may store with an offset.",
        unit="bytes",
    )

    # --- members ---------------------------------------------------------------------------------
    group_min_session_timeout_ms: int = option(
        6_000,
        key="group.min.session.timeout.ms",
        dynamic=True,
        doc="The shortest session timeout that a member may ask for.",
        unit="ms",
    )
    group_max_session_timeout_ms: int = option(
        1_800_000,
        key="group.max.session.timeout.ms",
        dynamic=True,
        doc="The longest session timeout that a member may ask for.",
        unit="ms",
    )
    group_initial_rebalance_delay_ms: int = option(
        3_000,
        key="group.initial.rebalance.delay.ms",
        dynamic=True,
        doc="How long a new group waits for more members after the first one has joined.",
        unit="ms",
    )
    group_max_size: int = option(
        10_000,
        key="group.max.size",
        dynamic=True,
        doc="Largest number of members in one group.",
        minimum=1,
    )
    groups_max: int = option(
        100_000,
        key="tidemill.groups.max",
        dynamic=True,
        doc="Largest number of groups that this broker coordinates; more are refused.",
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = option(
        45_000,
        key="group.consumer.session.timeout.ms",
        dynamic=True,
        doc="A member of the consumer protocol is removed after this long without a heartbeat.",
        unit="ms",
        minimum=1,
    )
    group_consumer_heartbeat_interval_ms: int = option(
        5_000,
        key="group.consumer.heartbeat.interval.ms",
        dynamic=True,
        doc="Interval at which members of the consumer protocol are told to send heartbeats.",
        unit="ms",
        minimum=1,
    )
    group_consumer_min_session_timeout_ms: int = option(
        45_000,
        key="group.consumer.min.session.timeout.ms",
        dynamic=True,
        doc="The shortest `consumer.session.timeout.ms` that can be set for one group.",
        unit="ms",
        minimum=1,
    )
    group_consumer_max_session_timeout_ms: int = option(
        60_000,
        key="group.consumer.max.session.timeout.ms",
        dynamic=True,
        doc="The longest `consumer.session.timeout.ms` that can be set for one group.",
        unit="ms",
        minimum=1,
    )
    group_consumer_min_heartbeat_interval_ms: int = option(
        5_000,
        key="group.consumer.min.heartbeat.interval.ms",
        dynamic=True,
        doc="The shortest `consumer.heartbeat.interval.ms` that can be set for one group.",
        unit="ms",
        minimum=1,
    )
    group_consumer_max_heartbeat_interval_ms: int = option(
        15_000,
        key="group.consumer.max.heartbeat.interval.ms",
        dynamic=True,
        doc="The longest `consumer.heartbeat.interval.ms` that can be set for one group.",
        unit="ms",
        minimum=1,
    )
    group_consumer_assignors: str = option(
        "uniform,range",
        key="group.consumer.assignors",
        doc="Assignors of the consumer protocol; the first is the default for members that name "
        "none.",
    )

    group_consumer_migration_policy: str = option(
        "bidirectional",
        key="group.consumer.migration.policy",
        doc="Whether a group with members may change between the classic and the consumer "
        "protocol: `upgrade`, `downgrade`, `bidirectional` or `disabled`.",
    )

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group with members may become a consumer group."""
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group may become a classic group again."""
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade")

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """The names of the assignors, the default first."""
        return tuple(self.group_consumer_assignors.split(","))

    def validate(self) -> None:
        """Check relations between keys; UserError names the keys that do not fit together."""
        for least, most in _RANGES:
            low, high = getattr(self, _field(least)), getattr(self, _field(most))
            if low > high:
                raise UserError(f"{least}={low} is more than {most}={high}")
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise UserError(
                "group.consumer.heartbeat.interval.ms must be less than "
                f"group.consumer.session.timeout.ms={self.group_consumer_session_timeout_ms}"
            )
        if self.group_consumer_migration_policy.lower() not in _MIGRATION_POLICIES:
            raise UserError(
                f"group.consumer.migration.policy={self.group_consumer_migration_policy}: choose "
                f"from {', '.join(_MIGRATION_POLICIES)}"
            )
        if not set(self.consumer_assignors) <= _ASSIGNORS:
            raise UserError(
                f"group.consumer.assignors={self.group_consumer_assignors}: choose from "
                f"{', '.join(sorted(_ASSIGNORS))}"
            )
