"""A page: whole topics, as they are stored. Pure.

A topic is on the page `topic id % 64`, with everything about it, so that one put makes, changes or
deletes it. A value is JSON, packed above 16 KiB:

    seq         the write that changed the page last; the head has the same number
    topics      per topic: id, name, overrides, partitions; m min.insync.replicas in force
    partitions  none for a view, which has those of its base; else by index: r replicas, l leader,
                e leader epoch, p partition epoch, and where they differ from the usual: i isr
                (else the replicas), x elr (else empty), k last known leader (else the leader),
                s suspects, a adding, d removing, u unclean epoch, f flags

The partition epoch is a number of its own that rises with every change of the partition, not the
version of a node: it must survive a move to another store (I14).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, final
from uuid import UUID

from tidemill.core.config.keys import INT32_MAX, INT64_MAX
from tidemill.core.ids import NO_LEADER, TopicId, is_legal_topic_name
from tidemill.core.limits import (
    METADATA_PAGES,
    PARTITIONS_ENCODED_PER_SLICE,
    PARTITIONS_PER_TOPIC_MAX,
)
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image import stored_fields
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.metadata_image import NO_EPOCH, PartitionImage
from tidemill.metadata.image.stored_fields import Fields

__all__ = ["Page", "StoredTopic", "decode_page", "page_of", "page_value"]


@final
class StoredTopic(NamedTuple):
    """A topic as it is stored; the reader resolves its configuration."""

    name: str
    topic_id: TopicId
    overrides: Mapping[str, str]
    """All keys, also those that this version does not know."""
    partitions: tuple[PartitionImage, ...]
    min_isr: int = 0
    """min.insync.replicas in force; 0: an earlier version wrote the page."""


@final
class Page(NamedTuple):
    """One page of the metadata."""

    seq: int
    topics: tuple[StoredTopic, ...]


def page_of(topic_id: UUID) -> int:
    """The number of the page that a topic is on."""
    return topic_id.int % METADATA_PAGES


def page_value(seq: int, topics: Iterable[StoredTopic]) -> Steps[dict[str, Any]]:
    """What is stored of a page."""
    values: list[dict[str, Any]] = []
    for topic in topics:
        value = yield from _topic_value(topic)
        values.append(value)
    return {"seq": seq, "topics": values}


def _topic_value(topic: StoredTopic) -> Steps[dict[str, Any]]:
    partitions: list[dict[str, Any]] = []
    for first in range(0, len(topic.partitions), PARTITIONS_ENCODED_PER_SLICE):
        if first:
            yield
        some = topic.partitions[first : first + PARTITIONS_ENCODED_PER_SLICE]
        partitions += [_partition_value(one) for one in some]
    value: dict[str, Any] = {
        "id": str(topic.topic_id),
        "name": topic.name,
        "overrides": dict(topic.overrides),
        "partitions": partitions,
    }
    if topic.min_isr:
        value["m"] = topic.min_isr
    return value


def _partition_value(partition: PartitionImage) -> dict[str, Any]:
    value: dict[str, Any] = {
        "r": partition.replicas,
        "l": partition.leader,
        "e": partition.leader_epoch,
        "p": partition.partition_epoch,
    }
    if partition.isr != partition.replicas:
        value["i"] = partition.isr
    if partition.elr:
        value["x"] = partition.elr
    if partition.last_known_leader != partition.leader:
        value["k"] = partition.last_known_leader
    rare = {
        "s": partition.suspects,
        "a": partition.adding,
        "d": partition.removing,
        "f": partition.flags,
    }
    value.update((key, one) for key, one in rare.items() if one)
    if partition.unclean_epoch != NO_EPOCH:
        value["u"] = partition.unclean_epoch
    return value


def decode_page(page: int, stored: bytes) -> Steps[Page]:
    """BadNode unless all of the page is as we would have written it."""
    value = stored_fields.load(page_path(page), stored)
    topics: list[StoredTopic] = []
    for one in value.objects("topics"):
        topic = yield from _topic(one)
        topics.append(topic)
    if any(page_of(topic.topic_id) != page for topic in topics):
        raise value.bad("has a topic of another page")
    if len({topic.name for topic in topics}) != len(topics):
        raise value.bad("has two topics of one name")
    return Page(value.number("seq", 0, INT64_MAX), tuple(topics))


def _topic(value: Fields) -> Steps[StoredTopic]:
    name = value.text("name")
    if not is_legal_topic_name(name):
        raise value.bad("not a topic name")
    partitions, overrides = value.objects("partitions"), value.texts("overrides")
    is_view = bool(overrides.get("tidemill.view.of"))
    if len(partitions) > PARTITIONS_PER_TOPIC_MAX or bool(partitions) is is_view:
        raise value.bad("no or too many partitions")
    topic_id = TopicId(value.uuid("id"))
    decoded: list[PartitionImage] = []
    for first in range(0, len(partitions), PARTITIONS_ENCODED_PER_SLICE):
        if first:
            yield
        some = partitions[first : first + PARTITIONS_ENCODED_PER_SLICE]
        decoded += [_partition(one) for one in some]
    return StoredTopic(
        name,
        topic_id,
        overrides,
        tuple(decoded),
        value.number("m", 1, INT32_MAX) if value.has("m") else 0,
    )


def _partition(value: Fields) -> PartitionImage:
    replicas = value.replicas("r")
    leader = value.number("l", NO_LEADER, INT32_MAX)
    partition = PartitionImage(
        leader=leader,
        leader_epoch=value.number("e", 0, INT32_MAX),
        replicas=replicas,
        isr=value.brokers("i") if value.has("i") else replicas,
        elr=_brokers(value, "x"),
        last_known_leader=value.number("k", NO_LEADER, INT32_MAX) if value.has("k") else leader,
        partition_epoch=value.number("p", 0, INT64_MAX),
        suspects=_brokers(value, "s"),
        adding=_brokers(value, "a"),
        removing=_brokers(value, "d"),
        unclean_epoch=value.number("u", 0, INT32_MAX) if value.has("u") else NO_EPOCH,
        flags=value.number("f", 0, INT32_MAX) if value.has("f") else 0,
    )
    check_partition(value, partition)
    return partition


def _brokers(value: Fields, name: str) -> tuple[int, ...]:
    return value.brokers(name) if value.has(name) else ()


def check_partition(value: Fields, partition: PartitionImage) -> None:
    """BadNode if the sets of replicas and the leader do not fit together."""
    replicas = set(partition.replicas)
    known = partition.isr + partition.elr + partition.suspects
    moved = partition.adding + partition.removing
    if len(set(known)) != len(known) or not replicas.issuperset(known):
        raise value.bad("isr, elr and suspects are not disjoint parts of the replicas")
    if len(set(moved)) != len(moved) or not replicas.issuperset(moved):
        raise value.bad("adding and removing are not disjoint parts of the replicas")
    if len(partition.adding) == len(replicas) or len(partition.removing) == len(replicas):
        raise value.bad("all replicas are added or removed")
    if partition.leader != NO_LEADER and partition.leader not in partition.isr:
        raise value.bad("the leader is not in the isr")
