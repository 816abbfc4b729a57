"""How the brokers of one command differ: ids, ports, directories, racks; all share one store.

Broker 0 lies where a lone broker does. So a cluster grows out of one broker on the same directory,
and nothing has to be moved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.endpoint import PORT_MAX, Endpoint, parse_endpoint
from tidemill.core.errors import UserError

__all__ = [
    "BROKERS_MAX",
    "BrokerPlan",
    "TopicPlan",
    "left_out",
    "parse_racks",
    "plan_brokers",
    "plan_topics",
    "too_many_replicas",
]

BROKERS_MAX = 16
"""Each is a process of its own; beyond the cores of one machine more of them gain nothing."""
REPLICAS_DEFAULT_MAX = 3
_ADDRESS_KEYS = (
    "listeners",
    "advertised.listeners",
    "metrics.listen",
    "tidemill.internal.listen",
    "tidemill.route.listen",
    "tidemill.route.advertised",
)


@final
@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What a new topic gets if its creator does not say."""

    replicas: int
    in_sync_min: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan:
    """One broker of several."""

    broker_id: int
    data_dir: str
    settings: tuple[str, ...]
    """KEY=VALUE; they win over what the user gave."""
    flags: tuple[str, ...]
    """What the user gave, passed on as it is."""
    program: tuple[str, ...] = (sys.executable, "-m", "tidemill.cli.main", "up")

    def command(self, parent_pid: int, listen: str = "") -> list[str]:
        """The command line; `listen` keeps the port that an earlier run was given."""
        settings = (*self.settings, f"listeners={listen}") if listen else self.settings
        own = [flag for setting in settings for flag in ("--set", setting)]
        parent = ("--supervisor", str(parent_pid))
        return [*self.program, *parent, *self.flags, *own]


def parse_racks(text: str | None, count: int) -> list[str]:
    """One rack per broker, in the order of their ids; empty if none are named."""
    if text is None:
        return []
    racks = [rack.strip() for rack in text.split(",")]
    if len(racks) != count or not all(racks):
        raise UserError(f"--racks {text}: name {count} racks, one per broker, with commas between")
    return racks


def plan_topics(config: BrokerConfig, *, count: int, given: Collection[str]) -> TopicPlan:
    """Three replicas if there are so many brokers, of which a majority must be in sync."""
    replicas, in_sync_min = config.default_replication_factor, config.topic_defaults
    if "default.replication.factor" not in given:
        replicas = min(REPLICAS_DEFAULT_MAX, count)
    if "min.insync.replicas" in given:
        return TopicPlan(replicas, in_sync_min.min_insync_replicas)
    return TopicPlan(replicas, (replicas + 1) // 2)


def plan_brokers(
    config: BrokerConfig,
    *,
    count: int,
    racks: Sequence[str],
    given: Collection[str],
    flags: Sequence[str],
) -> list[BrokerPlan]:
    """`config` is what the user asked for, `given` the keys that are named in it."""
    if "node.id" in given:
        raise UserError("node.id: --brokers numbers the brokers itself; leave this key out")
    if config.listens_everywhere and not config.advertised_listeners:
        # One broker answers with the address that the client used; it cannot for the others.
        raise UserError(
            f"--listen {config.listeners}: say with --advertise HOST:PORT where clients reach "
            "broker 0; the others have the next ports"
        )
    topics = plan_topics(config, count=count, given=given)
    shared = (
        f"tidemill.store.file={config.store_path}",
        f"default.replication.factor={topics.replicas}",
        f"min.insync.replicas={topics.in_sync_min}",
    )
    return [
        BrokerPlan(
            broker_id=broker_id,
            data_dir=_data_dir(config, broker_id),
            settings=(
                f"node.id={broker_id}",
                f"data.dir={_data_dir(config, broker_id)}",
                *_addresses(config, broker_id),
                *shared,
                *(f"broker.rack={rack}" for rack in racks[broker_id : broker_id + 1]),
            ),
            flags=tuple(flags),
        )
        for broker_id in range(count)
    ]


def left_out(config: BrokerConfig, count: int) -> str:
    """A warning if an earlier command ran more brokers on this directory; else empty."""
    found = [k for k in range(count, BROKERS_MAX) if os.path.isdir(_data_dir(config, k))]
    if not found:
        return ""
    names = ", ".join(f"broker-{broker_id}" for broker_id in found)
    return (
        f"{config.data_dir} also has {names}, not started now: partitions that only they hold have "
        "no leader, and acks=all is refused where it needs their copies; "
        f"--brokers {found[-1] + 1} starts all"
    )


def too_many_replicas(topics: TopicPlan, count: int) -> str:
    """A warning if no topic could be created that takes the default; else empty."""
    if topics.replicas <= count:
        return ""
    return (
        f"default.replication.factor={topics.replicas}, but {count} brokers are started: until "
        "more are, a topic can be created only with fewer replicas"
    )


def _data_dir(config: BrokerConfig, broker_id: int) -> str:
    if not broker_id:
        return config.data_dir
    return os.path.join(config.data_dir, f"broker-{broker_id}")


def _addresses(config: BrokerConfig, broker_id: int) -> Iterator[str]:
    """Every address that was named, with the next port for the next broker; 0 stays 0."""
    texts = (
        config.listeners,
        config.advertised_listeners,
        config.metrics_listen,
        config.internal_listen,
        config.route_listen,
        config.route_advertised,
    )
    for key, text in zip(_ADDRESS_KEYS, texts, strict=True):
        if text:
            yield f"{key}={_shifted(parse_endpoint(text, key=key), broker_id, key=key)}"


def _shifted(endpoint: Endpoint, by: int, *, key: str) -> Endpoint:
    host, port = endpoint
    if port and port + by > PORT_MAX:
        raise UserError(
            f"{key}={endpoint}: broker {by} would have port {port + by}; choose a lower port"
        )
    return Endpoint(host, port + by if port else 0)
