"""The stored form of the cluster's metadata: paths and values of the nodes. Pure.

    /cluster                     the cluster's id; made once
    /controller                  the broker that is the controller; ephemeral
    /controller_epoch            rises with every election; every multi checks its version (I33)
    /broker_epoch                the last broker epoch given out
    /brokers/<id>                a live broker's address; ephemeral
    /topics/<name>               id, assignment, overrides
    /partitions/<topic-id>/<n>   leader, epoch, isr, elr
    /producer_ids                the first producer id not given out yet
    /configs/broker/<id>         what was set at run time for one broker
    /configs/broker/~all         the same for all brokers
    /configs/group/<name>        the same for a group; the name is percent-encoded

A topic exists exactly if its /topics node does: its partitions are made before and removed after
it, so that a crash in between leaves only strays, which the next controller deletes.

Values are JSON objects with a version field. Other programs can write to the store, so every node
is checked when it is read: size, shape, ranges. A node that fails is a `BadNode`; the reader raises
an alarm and continues without it (S46).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, final
from urllib.parse import quote, unquote
from uuid import UUID

from tidemill.core.config.keys import INT32_MAX, INT64_MAX
from tidemill.core.errors import TidemillError
from tidemill.core.ids import NO_LEADER, TopicId, is_legal_topic_name
from tidemill.metadata.image.metadata_image import BrokerImage, PartitionImage
from tidemill.metadata.image.overrides import ConfigOwner, OwnerKind
from tidemill.metadata.store.coord import Node

__all__ = [
    "BROKERS",
    "BROKER_EPOCH",
    "CLUSTER",
    "CONFIGS",
    "CONTROLLER",
    "CONTROLLER_EPOCH",
    "PARTITIONS",
    "PRODUCER_IDS",
    "TOPICS",
    "BadNode",
    "StoredTopic",
    "broker_path",
    "decode_broker",
    "decode_cluster_id",
    "decode_controller",
    "decode_counter",
    "decode_overrides",
    "decode_partition",
    "decode_topic",
    "encode_broker",
    "encode_cluster_id",
    "encode_controller",
    "encode_counter",
    "encode_overrides",
    "encode_partition",
    "encode_topic",
    "overrides_path",
    "partition_path",
    "partitions_prefix",
    "topic_path",
    "try_broker_id",
    "try_config_owner",
    "try_partition",
    "try_topic_name",
]

CLUSTER = "/cluster"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_EPOCH = "/broker_epoch"
PRODUCER_IDS = "/producer_ids"
BROKERS = "/brokers/"
TOPICS = "/topics/"
PARTITIONS = "/partitions/"
CONFIGS = "/configs/"
_ALL = "~all"
"""In place of a name; no name is encoded to this."""

NODE_BYTES_MAX = 1 << 20
"""The largest node that ZooKeeper stores; a topic of 10,000 partitions needs a third of it."""
_FORMAT = 1
_PARTITIONS_MAX = 100_000
_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_PARTITION_PATH = re.compile(r"/partitions/([0-9a-f-]{36})/(0|[1-9][0-9]{0,8})\Z")
_CONFIGS_PATH = re.compile(r"/configs/(broker|group)/(~all|[A-Za-z0-9_%-]+)\Z")
_BROKER_PATH = re.compile(r"/brokers/(0|[1-9][0-9]{0,9})\Z")


class BadNode(TidemillError):
    """A stored node that Tidemill cannot have written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!a}: {reason}")


# --- paths -------------------------------------------------------------------------------------


def broker_path(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def topic_path(name: str) -> str:
    assert is_legal_topic_name(name), name
    return f"{TOPICS}{name}"


def partitions_prefix(topic_id: UUID) -> str:
    return f"{PARTITIONS}{topic_id}/"


def partition_path(topic_id: UUID, index: int) -> str:
    return f"{PARTITIONS}{topic_id}/{index}"


def try_broker_id(path: str) -> int | None:
    """The broker id in a path under BROKERS; None if the path is not one of ours."""
    found = _BROKER_PATH.match(path)
    return int(found[1]) if found else None


def try_topic_name(path: str) -> str | None:
    """The topic name in a path under TOPICS; None if the path is not one of ours."""
    name = path.removeprefix(TOPICS)
    return name if is_legal_topic_name(name) else None


def try_partition(path: str) -> tuple[UUID, int] | None:
    """Topic id and index in a path under PARTITIONS; None if the path is not one of ours."""
    found = _PARTITION_PATH.match(path)
    if not found:
        return None
    try:
        return UUID(found[1]), int(found[2])
    except ValueError:
        return None


def overrides_path(owner: ConfigOwner) -> str:
    # `quote` leaves dots and tildes alone, but ZooKeeper refuses a dot for a name.
    name = quote(owner.name, safe="").replace(".", "%2E").replace("~", "%7E")
    return f"{CONFIGS}{owner.kind}/{name or _ALL}"


def try_config_owner(path: str) -> ConfigOwner | None:
    """The owner in a path under CONFIGS; None if the path is not one of ours."""
    found = _CONFIGS_PATH.match(path)
    if not found:
        return None
    name = "" if found[2] == _ALL else unquote(found[2], errors="replace")
    owner = ConfigOwner(OwnerKind(found[1]), name)
    return owner if overrides_path(owner) == path else None


# --- values ------------------------------------------------------------------------------------


@final
class StoredTopic(NamedTuple):
    """A /topics node; the reader resolves its configuration."""

    name: str
    topic_id: TopicId
    replicas: tuple[tuple[int, ...], ...]
    overrides: Mapping[str, str]
    version: int


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"id": cluster_id})


def decode_cluster_id(path: str, node: Node) -> str:
    cluster_id = _load(path, node).text("id")
    if not _CLUSTER_ID.match(cluster_id):
        raise BadNode(path, "not a cluster id")
    return cluster_id


def encode_counter(value: int) -> bytes:
    return _dump({"value": value})


def decode_counter(path: str, node: Node) -> int:
    return _load(path, node).number("value", 0, INT64_MAX)


def encode_controller(broker_id: int, epoch: int) -> bytes:
    return _dump({"broker": broker_id, "epoch": epoch})


def decode_controller(path: str, node: Node) -> tuple[int, int]:
    """Broker id and controller epoch."""
    value = _load(path, node)
    return value.number("broker", 0, INT32_MAX), value.number("epoch", 0, INT64_MAX)


def encode_broker(broker: BrokerImage) -> bytes:
    return _dump(
        {"epoch": broker.epoch, "host": broker.host, "port": broker.port, "rack": broker.rack}
    )


def decode_broker(path: str, node: Node) -> BrokerImage:
    broker_id = try_broker_id(path)
    if broker_id is None or broker_id > INT32_MAX:
        raise BadNode(path, "not a broker id")
    value = _load(path, node)
    return BrokerImage(
        broker_id=broker_id,
        epoch=value.number("epoch", 0, INT64_MAX),
        host=value.text("host"),
        port=value.number("port", 0, 65_535),
        rack=value.text("rack"),
    )


def encode_topic(
    topic_id: TopicId, replicas: tuple[tuple[int, ...], ...], overrides: Mapping[str, str]
) -> bytes:
    return _dump({"id": str(topic_id), "replicas": replicas, "overrides": dict(overrides)})


def decode_topic(path: str, node: Node) -> StoredTopic:
    name = try_topic_name(path)
    if name is None:
        raise BadNode(path, "not a topic name")
    value = _load(path, node)
    try:
        topic_id = TopicId(UUID(value.text("id")))
    except ValueError:
        raise BadNode(path, "not a topic id") from None
    return StoredTopic(
        name, topic_id, value.assignment("replicas"), value.texts("overrides"), node.version
    )


def encode_overrides(overrides: Mapping[str, str]) -> bytes:
    return _dump({"overrides": dict(overrides)})


def decode_overrides(path: str, node: Node) -> dict[str, str]:
    return _load(path, node).texts("overrides")


def encode_partition(partition: PartitionImage) -> bytes:
    return _dump(
        {
            "leader": partition.leader,
            "epoch": partition.leader_epoch,
            "isr": partition.isr,
            "elr": partition.elr,
            "last": partition.last_known_leader,
        }
    )


def decode_partition(path: str, node: Node, replicas: tuple[int, ...]) -> PartitionImage:
    """A partition's state; isr, elr and leader must be among the `replicas` of its topic."""
    value = _load(path, node)
    partition = PartitionImage(
        leader=value.number("leader", NO_LEADER, INT32_MAX),
        leader_epoch=value.number("epoch", 0, INT32_MAX),
        replicas=replicas,
        isr=value.brokers("isr"),
        elr=value.brokers("elr"),
        last_known_leader=value.number("last", NO_LEADER, INT32_MAX),
        partition_epoch=node.version,
    )
    eligible = partition.isr + partition.elr
    if len(set(eligible)) != len(eligible) or not set(eligible) <= set(replicas):
        raise BadNode(path, "isr and elr are not disjoint parts of the replicas")
    if partition.leader != NO_LEADER and partition.leader not in partition.isr:
        raise BadNode(path, "the leader is not in the isr")
    return partition


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps({"v": _FORMAT, **value}, separators=(",", ":")).encode()


def _load(path: str, node: Node) -> _Fields:
    if len(node.value) > NODE_BYTES_MAX:
        raise BadNode(path, f"more than {NODE_BYTES_MAX} bytes")
    try:
        value = json.loads(node.value.decode())
    except (ValueError, RecursionError):
        raise BadNode(path, "not JSON") from None
    if not isinstance(value, dict):
        raise BadNode(path, "not an object")
    if value.get("v") != _FORMAT:
        raise BadNode(path, "a format that this version does not know")
    return _Fields(path, value)


@final
class _Fields:
    """The fields of a node; each getter checks its field."""

    __slots__ = ("_path", "_value")

    def __init__(self, path: str, value: dict[str, Any]) -> None:
        self._path = path
        self._value = value

    def number(self, name: str, minimum: int, maximum: int) -> int:
        found = self._value.get(name)
        if type(found) is not int or not minimum <= found <= maximum:
            raise BadNode(self._path, f"{name} is not a number in range")
        return found

    def text(self, name: str) -> str:
        found = self._value.get(name)
        if not isinstance(found, str):
            raise BadNode(self._path, f"{name} is not a text")
        return found

    def texts(self, name: str) -> dict[str, str]:
        found = self._value.get(name)
        if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
            raise BadNode(self._path, f"{name} is not a map of texts")
        return found

    def brokers(self, name: str) -> tuple[int, ...]:
        return self._brokers(name, self._value.get(name))

    def assignment(self, name: str) -> tuple[tuple[int, ...], ...]:
        found = self._value.get(name)
        if not isinstance(found, list) or not 1 <= len(found) <= _PARTITIONS_MAX:
            raise BadNode(self._path, f"{name} is not a list of partitions")
        return tuple([self._replicas(name, one) for one in found])

    def _replicas(self, name: str, found: object) -> tuple[int, ...]:
        replicas = self._brokers(name, found)
        if not replicas or len(set(replicas)) != len(replicas):
            raise BadNode(self._path, f"{name} has no or repeated brokers")
        return replicas

    def _brokers(self, name: str, found: object) -> tuple[int, ...]:
        if not isinstance(found, list):
            raise BadNode(self._path, f"{name} is not a list")
        for one in found:
            if type(one) is not int or not 0 <= one <= INT32_MAX:
                raise BadNode(self._path, f"{name} has something that is not a broker id")
        return tuple(found)
