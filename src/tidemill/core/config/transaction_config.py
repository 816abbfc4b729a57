"""The keys of transactions and of the topic that holds their state. Pure.

A section of `BrokerConfig` that the transaction coordinator gets as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import Scope, option
from tidemill.core.limits import KIB, MIB

__all__ = ["TransactionConfig"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """The keys of transactions; a field has the name of its key."""

    # --- `__transaction_state` -------------------------------------------------------------------
    transaction_state_log_num_partitions: int = option(
        50,
        key="transaction.state.log.num.partitions",
        doc="Partitions of `__transaction_state`; fixed once the topic exists.",
        scope=Scope.CLUSTER,
        minimum=1,
        maximum=10_000,
    )
    transaction_state_log_replication_factor: int = option(
        3,
        key="transaction.state.log.replication.factor",
        doc="Replicas of `__transaction_state`; fewer while there are "
        "fewer brokers. It gets more when brokers join.",
        scope=Scope.CLUSTER,
        minimum=1,
        maximum=32_767,
    )
    transaction_state_log_segment_bytes: int = option(
        100 * MIB,
        key="transaction.state.log.segment.bytes",
        doc="Segment size of `__transaction_state`; smaller segments load faster.",
        scope=Scope.CLUSTER,
        unit="bytes",
        minimum=1 * KIB,
    )

    # --- transactions ----------------------------------------------------------------------------
    transaction_max_timeout_ms: int = option(
        900_000,
        key="transaction.max.timeout.ms",
        dynamic=True,
        doc="The longest timeout that a producer may ask for its transactions.",
        unit="ms",
        minimum=1,
    )
    transactional_id_expiration_ms: int = option(
        604_800_000,
        key="transactional.id.expiration.ms",
        dynamic=True,
        doc="How long a transactional id is remembered after its last transaction.",
        unit="ms",
        minimum=1,
    )
    transaction_remove_expired_interval_ms: int = option(
        3_600_000,
        key="transaction.remove.expired.transaction.cleanup.interval.ms",
        dynamic=True,
        doc="How often the broker looks for transactional ids that have expired.",
        unit="ms",
        minimum=1,
    )
    transactional_ids_max: int = option(
        100_000,
        key="tidemill.transactional.ids.max",
        dynamic=True,
        doc="Largest number of transactional ids that this broker coordinates; more are refused.",
        minimum=1,
    )
