"""The first form of the stored metadata, a node per topic and per partition, and its conversion to
pages. Pure.

    /topics/<name>               id, replicas, overrides
    /partitions/<topic-id>/<n>   leader, epoch, isr, elr; its version is the partition epoch
    /configs/<kind>/<name>       what was set at run time for a broker, for all, for a group

The epochs of brokers and controllers were versions too; the values beside them are the same
numbers. A node that cannot be read stops the conversion, which then changes nothing: what it meant
would be lost for good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote
from uuid import UUID

from tidemill.core.config.keys import INT32_MAX
from tidemill.core.errors import UserError
from tidemill.core.ids import NO_LEADER, TopicId, is_legal_topic_name
from tidemill.core.limits import METADATA_PAGES
from tidemill.core.loop.steps import finished
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.head import HEAD, PARTS, SETTINGS, Head, page_path
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.image.overrides import ConfigOwner, OwnerKind, StoredOverrides
from tidemill.metadata.image.page import StoredTopic, check_partition, page_of, page_value
from tidemill.metadata.image.stored_fields import BadNode, Fields, checked_replicas
from tidemill.metadata.store.coord import Node

__all__ = ["converted_from_format_1"]

_TOPICS = "/topics/"
_PARTITIONS = "/partitions/"
_CONFIGS = "/configs/"
_COUNTERS = (nodes.BROKER_EPOCH, nodes.CONTROLLER_EPOCH)
_CONFIGS_PATH = re.compile(r"/configs/(broker|group)/(~all|[A-Za-z0-9_%-]+)\Z")


def converted_from_format_1(stored: Sequence[tuple[str, Node]]) -> list[tuple[str, bytes]]:
    """All nodes in the form of today; UserError if one of them cannot be read."""
    found = dict(stored)
    if nodes.CLUSTER not in found:
        return [(path, node.value) for path, node in stored]
    try:
        return _converted(found)
    except BadNode as bad:
        raise UserError(
            f"the coordination store cannot be converted to the form of this version: {bad}"
        ) from bad


def _converted(found: Mapping[str, Node]) -> list[tuple[str, bytes]]:
    kept = {
        path: node.value
        for path, node in found.items()
        if not path.startswith((_TOPICS, _PARTITIONS, _CONFIGS))
    }
    cluster_id = stored_fields.load(nodes.CLUSTER, found[nodes.CLUSTER].value).text("id")
    kept[nodes.CLUSTER] = nodes.encode_cluster_id(cluster_id)
    for path in _COUNTERS:
        if path in found:
            kept[path] = nodes.encode_counter(found[path].version)
    topics = [_topic(path, found) for path in found if path.startswith(_TOPICS)]
    settings = dict(_overrides(path, found) for path in found if path.startswith(_CONFIGS))
    last_term = found.get(nodes.CONTROLLER_EPOCH)
    head = Head().after(PARTS, epoch=0 if last_term is None else last_term.version)
    for page in range(METADATA_PAGES):
        on_page = [topic for topic in topics if page_of(topic.topic_id) == page]
        kept[page_path(page)] = stored_fields.dump(finished(page_value(head.seq, on_page)))
    kept[SETTINGS] = stored_fields.dump(nodes.settings_value(head.seq, settings))
    kept[nodes.MEMBERS] = stored_fields.dump(nodes.members_value(head.seq, {}))
    kept[HEAD] = head.encode()
    for path in (SETTINGS, *map(page_path, range(METADATA_PAGES))):
        stored_fields.load(path, kept[path])  # what this version could not read is not written
    return sorted(kept.items())


def _topic(path: str, found: Mapping[str, Node]) -> StoredTopic:
    name = path.removeprefix(_TOPICS)
    value = stored_fields.load(path, found[path].value)
    if not is_legal_topic_name(name):
        raise value.bad("not a topic name")
    try:
        topic_id = TopicId(UUID(value.text("id")))
    except ValueError:
        raise value.bad("not a topic id") from None
    replicas = [_replicas(value, one) for one in value.items("replicas")]
    partitions = tuple(
        _partition(f"{_PARTITIONS}{topic_id}/{index}", found, one)
        for index, one in enumerate(replicas)
    )
    return StoredTopic(name, topic_id, value.texts("overrides"), partitions)


def _replicas(value: Fields, found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(one) is int and one >= 0 for one in found):
        raise value.bad("replicas has something that is not a list of brokers")
    return checked_replicas(value, "replicas", tuple(found))


def _partition(path: str, found: Mapping[str, Node], replicas: tuple[int, ...]) -> PartitionImage:
    if path not in found:
        raise BadNode(path, "missing")
    value = stored_fields.load(path, found[path].value)
    partition = PartitionImage(
        leader=value.number("leader", NO_LEADER, INT32_MAX),
        leader_epoch=value.number("epoch", 0, INT32_MAX),
        replicas=replicas,
        isr=value.brokers("isr"),
        elr=value.brokers("elr"),
        last_known_leader=value.number("last", NO_LEADER, INT32_MAX),
        partition_epoch=found[path].version,
    )
    check_partition(value, partition)
    return partition


def _overrides(path: str, found: Mapping[str, Node]) -> tuple[ConfigOwner, StoredOverrides]:
    match = _CONFIGS_PATH.match(path)
    if match is None:
        raise BadNode(path, "not one of ours")
    name = "" if match[2] == "~all" else unquote(match[2], errors="replace")
    values = stored_fields.load(path, found[path].value).texts("overrides")
    return ConfigOwner(OwnerKind(match[1]), name), StoredOverrides(values)
