"""Topics on either broker, created and deleted by the admin client of librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, final

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.processes import MeasurementFailed
from bench.wire_client import Address

__all__ = [
    "Led",
    "all_led",
    "broker_count",
    "controller_of",
    "create_topics",
    "delete_topic",
    "elect_preferred_leaders",
    "leader_of",
    "wait_for_in_sync",
]

TIMEOUT_S = 60.0
TOPICS_PER_REQUEST = 100


def create_topics(
    address: Address,
    names: Sequence[str],
    *,
    partitions: int,
    replication: int = 1,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create topics of the same shape, and wait until all replicas of the last are in sync."""
    admin = _admin(address)
    for first in range(0, len(names), TOPICS_PER_REQUEST):
        part = names[first : first + TOPICS_PER_REQUEST]
        topics = [NewTopic(n, partitions, replication, config=dict(config or {})) for n in part]
        _wait_for(admin.create_topics(topics, operation_timeout=TIMEOUT_S))
    _wait_for_in_sync(admin, names[-1], partitions, replication)


def delete_topic(address: Address, name: str) -> None:
    admin = _admin(address)  # kept in a variable: its end would cancel its requests
    _wait_for(admin.delete_topics([name], operation_timeout=TIMEOUT_S))


def _admin(address: Address) -> Any:  # noqa: ANN401 - the library has no types
    return AdminClient(
        {
            "bootstrap.servers": str(address),
            "broker.address.family": "v4",
            "log_level": 4,  # warnings only: it logs much when it is closed
            "socket.timeout.ms": int(TIMEOUT_S * 1000),
        }
    )


def _wait_for(futures: Mapping[str, Future[None]]) -> None:
    try:
        for future in futures.values():
            future.result(TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise MeasurementFailed(f"topics {', '.join(futures)}: {error}"[:300]) from error


def leader_of(address: Address, name: str, partition: int) -> int:
    """The broker that leads a partition, by its id."""
    found = _admin(address).list_topics(name, timeout=TIMEOUT_S).topics[name].partitions
    leader: int = found[partition].leader
    return leader


@final
class Led(NamedTuple):
    """A partition: who leads it, who is the first of its replicas, and how many are in sync."""

    leader: int
    preferred: int
    in_sync: int = 0


def all_led(address: Address, prefix: str) -> list[Led]:
    """Every partition of the topics whose names begin so, as one broker sees it."""
    topics = _admin(address).list_topics(timeout=TIMEOUT_S).topics
    return [
        Led(one.leader, one.replicas[0], len(one.isrs))
        for name, topic in topics.items()
        if name.startswith(prefix)
        for one in topic.partitions.values()
    ]


def controller_of(address: Address) -> int:
    """The controller, by its id, as one broker sees it; -1: there is none."""
    found: int = _admin(address).list_topics(timeout=TIMEOUT_S).controller_id
    return found


def broker_count(address: Address) -> int:
    """How many brokers one of them knows."""
    return len(_admin(address).list_topics(timeout=TIMEOUT_S).brokers)


def elect_preferred_leaders(address: Address) -> None:
    """Ask for an election of all partitions; it may go on when this returns."""
    admin = _admin(address)
    try:
        admin.elect_leaders(ElectionType.PREFERRED, None).result(TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        raise MeasurementFailed(f"election of leaders: {error}"[:300]) from error


def wait_for_in_sync(address: Address, name: str, partitions: int, replicas: int) -> None:
    """Wait until every partition has a leader and so many replicas in sync."""
    _wait_for_in_sync(_admin(address), name, partitions, replicas)


def _wait_for_in_sync(admin: Any, name: str, partitions: int, replicas: int) -> None:  # noqa: ANN401
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions.values()
        ready = [p for p in found if p.leader >= 0 and len(p.isrs) >= replicas]
        if len(ready) == partitions:
            return
        time.sleep(0.05)
    raise MeasurementFailed(f"topic {name} has not {replicas} replicas in sync everywhere")
