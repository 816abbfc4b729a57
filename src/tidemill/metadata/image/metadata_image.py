"""An immutable image of the cluster, and the difference between two images. Pure.

A `MetadataImage` never changes, so readers may keep one as long as they like. `ImageDraft` makes
the next one: it collects changes, copies only the maps that they touch, and returns the new image
in a `Delta` that names the differences. A topic that was deleted and created again under the same
name appears as both: its old id as deleted, its name as changed (I34).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar, final
from uuid import UUID

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.ids import NO_LEADER, ZERO_UUID, TopicId
from tidemill.metadata.image.overrides import ConfigOwner, StoredOverrides
from tidemill.metadata.image.topic_config import TopicConfig

__all__ = [
    "INTERNAL_TOPICS",
    "OFFSETS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTION_STATE_TOPIC",
    "BrokerImage",
    "DeletedTopic",
    "Delta",
    "ImageDraft",
    "MemberImage",
    "MetadataImage",
    "PartitionImage",
    "TopicImage",
    "controller_endpoint",
    "difference",
]

_Key = TypeVar("_Key", int, ConfigOwner)

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC})
"""They hold the state of coordinators; `controller/internal_topics.py` has their settings."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """A broker that is registered now."""

    broker_id: int
    epoch: int
    """Rises with every registration, which tells a restarted broker from its earlier run."""
    host: str
    port: int
    """Host and port are those that the broker advertises (T19)."""
    rack: str = ""
    internal: Endpoint | None = None
    """Where other brokers reach it; None: where clients do."""
    directory_id: UUID = ZERO_UUID
    """Of its data directory: another one is a new disk, empty and without a sign of loss."""
    unclean: bool = False
    """Its logs may have lost unflushed records since its last life."""
    leaving: bool = False
    """It is about to stop: it is given no leadership, and loses those that it has."""
    failed: bool = False
    """Its data directory is offline: it counts as dead, but says why."""

    @property
    def peer_endpoint(self) -> Endpoint:
        """Where other brokers reach it."""
        return self.internal or Endpoint(self.host, self.port)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberImage:
    """A broker that the controller has let in, alive or not."""

    broker_id: int
    epoch: int
    """The broker epoch that was let in; a broker registered in another one is fenced."""
    rack: str = ""
    directory_id: UUID = ZERO_UUID


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """The replicas of a partition and its leader.

    isr and elr are disjoint subsets of replicas. The leader, if there is one, is in the isr.
    """

    leader: int
    """The leading broker; NO_LEADER while there is none."""
    leader_epoch: int
    """Rises with every change of leader; no two leaders ever share one (I11)."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """Replicas that have everything below the high watermark."""
    elr: tuple[int, ...] = ()
    """Replicas outside the isr that still have everything below the high watermark, because it
    has stood still since they left: the isr was below min.insync.replicas (KIP-966)."""
    last_known_leader: int = NO_LEADER
    """The last leader; it may lead again when both isr and elr are empty."""
    partition_epoch: int = 0
    """Rises with every change of the partition; a change names the epoch it is based on (I14)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic with its partitions, indexed by partition number."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    overrides: Mapping[str, str] = field(default_factory=dict)
    """The keys that were set for this topic."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Keys that this version does not understand; they are stored again as they are."""
    config: TopicConfig
    """The overrides, resolved with the defaults."""

    @property
    def internal(self) -> bool:
        """Whether the topic holds the broker's own state."""
        return self.name in INTERNAL_TOPICS

    @property
    def view_of(self) -> str:
        """The topic whose records this one shows, filtered; empty if it has its own."""
        return self.config.tidemill_view_of

    @property
    def is_view(self) -> bool:
        return self.config.tidemill_view_of != ""

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition, which is what Kafka reports for the topic."""
        return len(self.partitions[0].replicas) if self.partitions else 0


class DeletedTopic(NamedTuple):
    """A deleted topic; owners of its data must compare the id, since names are used again."""

    name: str
    topic_id: TopicId


_NOTHING: Mapping[str, str] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """What this broker knows about the cluster."""

    cluster_id: str = ""
    controller_broker_id: int = NO_LEADER
    controller_epoch: int = 0
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    members: Mapping[int, MemberImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    names: Mapping[UUID, str] = field(default_factory=dict)
    views: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of views by that of their base, sorted."""
    overrides: Mapping[ConfigOwner, StoredOverrides] = field(default_factory=dict)
    """What was set at run time for brokers and groups; topics have theirs with them."""

    @property
    def controller_id(self) -> int:
        """The controller if it is a live broker (T18), else NO_LEADER."""
        return self.controller_broker_id if self.controller_broker_id in self.brokers else NO_LEADER

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def overrides_of(self, owner: ConfigOwner) -> Mapping[str, str]:
        stored = self.overrides.get(owner)
        return _NOTHING if stored is None else stored.values

    def partition(self, name: str, index: int) -> PartitionImage | None:
        topic = self.topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What differs in `after`. All names are sorted, so that a simulation repeats itself."""

    before: MetadataImage
    after: MetadataImage
    topics_changed: tuple[str, ...] = ()
    """Topics of `after` that are new or different."""
    topics_deleted: tuple[DeletedTopic, ...] = ()
    brokers_changed: tuple[int, ...] = ()
    """Brokers that joined, left, or registered again."""
    members_changed: tuple[int, ...] = ()
    """Brokers that were let in, in a new epoch or for the first time."""
    controller_changed: bool = False
    overrides_changed: tuple[ConfigOwner, ...] = ()
    """Brokers and groups whose overrides are new, different or gone."""

    @property
    def empty(self) -> bool:
        return not (
            self.topics_changed
            or self.topics_deleted
            or self.brokers_changed
            or self.members_changed
            or self.controller_changed
            or self.overrides_changed
        )


@final
class ImageDraft:
    """Builds the next image."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._brokers: dict[int, BrokerImage] | None = None
        self._members = base.members
        self._topics: dict[str, TopicImage] | None = None
        self._names: dict[UUID, str] | None = None
        self._touched: dict[str, None] = {}
        """Topics that were put or dropped; all others are those of the base."""
        self._overrides: dict[ConfigOwner, StoredOverrides] | None = None
        self._cluster_id = base.cluster_id
        self._controller = (base.controller_broker_id, base.controller_epoch)

    def set_cluster_id(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id

    def set_controller(self, broker_id: int, epoch: int) -> None:
        self._controller = (broker_id, epoch)

    @property
    def controller_epoch(self) -> int:
        return self._controller[1]

    def put_broker(self, broker: BrokerImage) -> None:
        self._own_brokers()[broker.broker_id] = broker

    def drop_broker(self, broker_id: int) -> None:
        self._own_brokers().pop(broker_id, None)

    @property
    def members(self) -> Mapping[int, MemberImage]:
        return self._members

    def set_members(self, members: Mapping[int, MemberImage]) -> None:
        self._members = members

    @property
    def overrides(self) -> Mapping[ConfigOwner, StoredOverrides]:
        return self._base.overrides if self._overrides is None else self._overrides

    def put_overrides(self, owner: ConfigOwner, stored: StoredOverrides) -> None:
        self._own_overrides()[owner] = stored

    def drop_overrides(self, owner: ConfigOwner) -> None:
        self._own_overrides().pop(owner, None)

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        return self._base.topics if self._topics is None else self._topics

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = (self._base.names if self._names is None else self._names).get(topic_id)
        return None if name is None else self.topic(name)

    def put_topic(self, topic: TopicImage) -> None:
        topics, names = self._own_topics()
        old = topics.get(topic.name)
        if topic is old:
            return
        self._touched[topic.name] = None
        if old is not None and old.topic_id != topic.topic_id:
            del names[old.topic_id]
        topics[topic.name] = topic
        names[topic.topic_id] = topic.name

    def drop_topic(self, name: str) -> None:
        topics, names = self._own_topics()
        old = topics.pop(name, None)
        if old is not None:
            self._touched[name] = None
            del names[old.topic_id]

    def put_partitions(self, topic_id: UUID, changed: Mapping[int, PartitionImage]) -> None:
        """Replace partitions of a topic; unknown topics and partitions are ignored."""
        topic = self.topic_by_id(topic_id)
        if topic is None:
            return
        partitions = list(topic.partitions)
        for index, partition in changed.items():
            if 0 <= index < len(partitions):
                partitions[index] = partition
        self.put_topic(replace(topic, partitions=tuple(partitions)))

    def finish(self) -> Delta:
        """The new image, as a delta against the old one."""
        base = self._base
        views = self._mirror_views()
        after = MetadataImage(
            cluster_id=self._cluster_id,
            controller_broker_id=self._controller[0],
            controller_epoch=self._controller[1],
            brokers=base.brokers if self._brokers is None else self._brokers,
            members=self.members,
            topics=self.topics,
            names=base.names if self._names is None else self._names,
            views=views,
            overrides=self.overrides,
        )
        return Delta(
            before=base,
            after=after,
            topics_changed=self._changed_topics(after),
            topics_deleted=self._deleted_topics(after),
            brokers_changed=_changed_keys(base.brokers, after.brokers),
            members_changed=_changed_keys(base.members, after.members),
            controller_changed=self._controller
            != (base.controller_broker_id, base.controller_epoch),
            overrides_changed=_changed_keys(base.overrides, after.overrides),
        )

    def _mirror_views(self) -> Mapping[str, tuple[str, ...]]:
        """Give views the partitions of their bases; the views that there are now.

        A view is stored without partitions. Whoever looks it up finds those of its base; it has
        none while the base is not known.
        """
        touched = list(self._touched)
        views = _views_after(
            self._base.views, ((self._base.topic(name), self.topic(name)) for name in touched)
        )
        for name in touched:
            topic = self.topic(name)
            affected = (name,) if topic is not None and topic.is_view else views.get(name, ())
            for view in (self.topics[one] for one in affected):
                base = self.topic(view.view_of)
                partitions = () if base is None or base.is_view else base.partitions
                if view.partitions != partitions:
                    self.put_topic(replace(view, partitions=partitions))
        return views

    def _changed_topics(self, after: MetadataImage) -> tuple[str, ...]:
        before = self._base.topics
        changed = (
            name
            for name in self._touched
            if name in after.topics and before.get(name) != after.topics[name]
        )
        return tuple(sorted(changed))

    def _deleted_topics(self, after: MetadataImage) -> tuple[DeletedTopic, ...]:
        olds = (self._base.topics.get(name) for name in self._touched)
        gone = (
            DeletedTopic(old.name, old.topic_id)
            for old in olds
            if old is not None and old.topic_id not in after.names
        )
        return tuple(sorted(gone))

    def _own_overrides(self) -> dict[ConfigOwner, StoredOverrides]:
        if self._overrides is None:
            self._overrides = dict(self._base.overrides)
        return self._overrides

    def _own_brokers(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self._base.brokers)
        return self._brokers

    def _own_topics(self) -> tuple[dict[str, TopicImage], dict[UUID, str]]:
        if self._topics is None:
            self._topics = dict(self._base.topics)
        if self._names is None:
            self._names = dict(self._base.names)
        return self._topics, self._names


def _views_after(
    views: Mapping[str, tuple[str, ...]],
    changes: Iterable[tuple[TopicImage | None, TopicImage | None]],
) -> Mapping[str, tuple[str, ...]]:
    """`views` after topics have changed, each from one state to another; None: there is none."""
    changed: dict[str, set[str]] = {}
    for before, after in changes:
        for topic in (before, after):
            if topic is not None and topic.is_view:
                names = changed.setdefault(topic.view_of, set(views.get(topic.view_of, ())))
                names.discard(topic.name)
                if topic is after:
                    names.add(topic.name)
    if not changed:
        return views
    merged = {**views, **{base: tuple(sorted(names)) for base, names in changed.items()}}
    return {base: names for base, names in merged.items() if names}


def _changed_keys(before: Mapping[_Key, object], after: Mapping[_Key, object]) -> tuple[_Key, ...]:
    """The keys whose values are new, different or gone."""
    if before is after:
        return ()
    both = before.keys() | after.keys()
    return tuple(sorted(one for one in both if before.get(one) != after.get(one)))


def controller_endpoint(image: MetadataImage) -> Endpoint | None:
    """Where brokers reach the controller; None if there is none that lives."""
    controller = image.brokers.get(image.controller_broker_id)
    return None if controller is None else controller.peer_endpoint


def difference(before: MetadataImage, after: MetadataImage) -> Delta:
    """The difference between any two images, for a reader that has missed the deltas."""
    changed = (name for name, topic in after.topics.items() if before.topics.get(name) != topic)
    gone = (
        DeletedTopic(topic.name, topic.topic_id)
        for topic in before.topics.values()
        if topic.topic_id not in after.names
    )
    return Delta(
        before=before,
        after=after,
        topics_changed=tuple(sorted(changed)),
        topics_deleted=tuple(sorted(gone)),
        brokers_changed=_changed_keys(before.brokers, after.brokers),
        members_changed=_changed_keys(before.members, after.members),
        controller_changed=(before.controller_broker_id, before.controller_epoch)
        != (after.controller_broker_id, after.controller_epoch),
        overrides_changed=_changed_keys(before.overrides, after.overrides),
    )
