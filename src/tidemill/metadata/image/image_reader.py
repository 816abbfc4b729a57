"""Turns stored nodes into images.

The store may hold nodes that Tidemill did not write (S46). A node that fails its check raises an
alarm and changes nothing: a topic, partition or broker that the image has stays as it was; one that
it does not have stays unknown. In particular a topic whose node is bad is not a deleted topic, and
its partitions are not strays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import KafkaError
from tidemill.core.ids import NO_LEADER
from tidemill.metadata.image import nodes
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    ImageDraft,
    MetadataImage,
    PartitionImage,
    TopicImage,
    unreadable_partition,
)
from tidemill.metadata.image.nodes import BadNode, StoredTopic
from tidemill.metadata.image.overrides import (
    ALL_BROKERS,
    StoredOverrides,
    broker_owner,
    readable_overrides,
)
from tidemill.metadata.image.topic_config import checked_overrides, resolve, topic_defaults
from tidemill.metadata.store.coord import Node

__all__ = ["ImageReader", "StoredNodes", "partitions_by_topic"]

Nodes = Sequence[tuple[str, Node]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredNodes:
    """All nodes under our prefixes, as scanned."""

    controller: Node | None
    configs: Nodes
    brokers: Nodes
    topics: Nodes
    partitions: Nodes


@final
class ImageReader:
    """Reads nodes into a draft of the next image."""

    def __init__(self, live: LiveConfig, alarm: Callable[[str], None]) -> None:
        self._live = live
        self._alarm = alarm
        self.defaults = topic_defaults(live.current)
        """The configuration of a topic without overrides, on this broker, now."""
        self.unreadable_topics: set[str] = set()
        """Paths of topics whose nodes are bad now; their partitions are not strays."""

    def read_all(self, base: MetadataImage, stored: StoredNodes, draft: ImageDraft) -> None:
        """Bring the whole draft in line with the store."""
        self.read_controller(stored.controller, draft)
        self._read_configs(base, stored.configs, draft)
        self._read_brokers(base, stored.brokers, draft)
        by_topic = partitions_by_topic(stored.partitions)
        self.unreadable_topics.clear()
        seen: set[str] = set()
        for path, node in stored.topics:
            seen.add(path)
            topic = self.try_decode_topic(path, node)
            if topic is not None:
                self.read_topic(topic, by_topic.get(str(topic.topic_id), {}), draft)
        for name in base.topics:
            if nodes.topic_path(name) not in seen:
                draft.drop_topic(name)

    def read_controller(self, node: Node | None, draft: ImageDraft) -> None:
        if node is None:
            draft.set_controller(NO_LEADER, draft.controller_epoch)
            return
        try:
            draft.set_controller(*nodes.decode_controller(nodes.CONTROLLER, node))
        except BadNode as bad:
            self._alarm(str(bad))

    def read_broker(self, path: str, node: Node | None, draft: ImageDraft) -> None:
        broker_id = nodes.try_broker_id(path)
        if broker_id is None:
            self._alarm(f"{path!a}: not one of ours")
        elif node is None:
            draft.drop_broker(broker_id)
        else:
            broker = self._try_decode_broker(path, node)
            if broker is not None:
                draft.put_broker(broker)

    def try_decode_topic(self, path: str, node: Node) -> StoredTopic | None:
        """The topic in a node; None, with an alarm, if the node is bad."""
        try:
            stored = nodes.decode_topic(path, node)
        except BadNode as bad:
            self._alarm(str(bad))
            self.unreadable_topics.add(path)
            return None
        self.unreadable_topics.discard(path)
        return stored

    def read_topic(
        self, stored: StoredTopic, partitions: Mapping[str, Node], draft: ImageDraft
    ) -> None:
        before = draft.topic(stored.name)
        known = before if before and before.topic_id == stored.topic_id else None
        decoded = self._partitions(stored, partitions, known.partitions if known else ())
        if known and known.version == stored.version and known.partitions == decoded:
            return
        overrides = self._readable_overrides(stored)
        draft.put_topic(
            TopicImage(
                name=stored.name,
                topic_id=stored.topic_id,
                partitions=decoded,
                overrides=overrides,
                config=resolve(overrides, self.defaults),
                version=stored.version,
            )
        )

    def read_partitions(self, topic: TopicImage, found: Nodes, draft: ImageDraft) -> None:
        """Read partitions of a topic that the draft has."""
        changed: dict[int, PartitionImage] = {}
        for path, node in found:
            place = nodes.try_partition(path)
            if place is not None and place[1] < len(topic.partitions):
                old = topic.partitions[place[1]]
                changed[place[1]] = self._partition(path, node, old.replicas, old)
        draft.put_partitions(topic.topic_id, changed)

    # --- configuration that was set at run time --------------------------------------------------

    def read_overrides(self, path: str, node: Node | None, draft: ImageDraft) -> None:
        owner = nodes.try_config_owner(path)
        if owner is None:
            self._alarm(f"{path!a}: not one of ours")
            return
        if node is None:
            draft.drop_overrides(owner)
            return
        known = draft.overrides.get(owner)
        if known is not None and known.version == node.version:
            return
        try:
            stored = nodes.decode_overrides(path, node)
        except BadNode as bad:
            self._alarm(str(bad))
            return
        values = readable_overrides(owner, stored, self._alarm)
        draft.put_overrides(owner, StoredOverrides(values, node.version))

    def apply_overrides(self, draft: ImageDraft) -> None:
        """Let the overrides of the draft take effect: in `LiveConfig`, and in all its topics."""
        live, overrides = self._live, draft.overrides
        everywhere, own = (
            overrides[owner].values if owner in overrides else {}
            for owner in (ALL_BROKERS, broker_owner(live.static.node_id))
        )
        for complaint in live.override(cluster=everywhere, own=own):
            self._alarm(f"configuration: {complaint}")
        defaults = topic_defaults(live.current)
        if defaults != self.defaults:
            self.defaults = defaults
            for topic in list(draft.topics.values()):
                draft.put_topic(replace(topic, config=resolve(topic.overrides, defaults)))

    def _read_configs(self, base: MetadataImage, found: Nodes, draft: ImageDraft) -> None:
        seen = set[str]()
        for path, node in found:
            self.read_overrides(path, node, draft)
            seen.add(path)
        for owner in base.overrides:
            if nodes.overrides_path(owner) not in seen:
                draft.drop_overrides(owner)

    # --- brokers and partitions ------------------------------------------------------------------

    def _read_brokers(self, base: MetadataImage, found: Nodes, draft: ImageDraft) -> None:
        seen: set[int | None] = set()
        for path, node in found:
            self.read_broker(path, node, draft)
            seen.add(nodes.try_broker_id(path))
        for broker_id in base.brokers:
            if broker_id not in seen:
                draft.drop_broker(broker_id)

    def _try_decode_broker(self, path: str, node: Node) -> BrokerImage | None:
        try:
            return nodes.decode_broker(path, node)
        except BadNode as bad:
            self._alarm(str(bad))
            return None

    def _partitions(
        self, stored: StoredTopic, found: Mapping[str, Node], old: Sequence[PartitionImage]
    ) -> tuple[PartitionImage, ...]:
        result: list[PartitionImage] = []
        for index, replicas in enumerate(stored.replicas):
            path = nodes.partition_path(stored.topic_id, index)
            before = old[index] if index < len(old) else None
            result.append(self._partition(path, found.get(path), replicas, before))
        return tuple(result)

    def _partition(
        self,
        path: str,
        node: Node | None,
        replicas: tuple[int, ...],
        before: PartitionImage | None,
    ) -> PartitionImage:
        try:
            if node is None:
                raise BadNode(path, "missing")
            if before is not None and before.partition_epoch == node.version:
                return before
            return nodes.decode_partition(path, node, replicas)
        except BadNode as bad:
            self._alarm(str(bad))
            return before or unreadable_partition(replicas)

    def _readable_overrides(self, stored: StoredTopic) -> dict[str, str]:
        try:
            return checked_overrides(stored.overrides)
        except KafkaError as error:
            self._alarm(f"{nodes.topic_path(stored.name)}: {error.detail}")
        readable: dict[str, str] = {}
        for name, text in stored.overrides.items():
            try:
                readable.update(checked_overrides({name: text}))
            except KafkaError:
                continue
        return readable


def partitions_by_topic(found: Nodes) -> dict[str, dict[str, Node]]:
    """Partition nodes by the text of their topic id, then by path."""
    by_topic: dict[str, dict[str, Node]] = {}
    start = len(nodes.PARTITIONS)
    for path, node in found:
        by_topic.setdefault(path[start : path.rfind("/")], {})[path] = node
    return by_topic
