"""An immutable image of the cluster, and the difference between two images. Pure.

A `MetadataImage` never changes, so readers may keep one as long as they like. A `Delta` has the
next one (`image_draft.py` makes it) and names the differences. A topic that was deleted and created
again under the same name appears as both: its old id as deleted, its name as changed (I34).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple, TypeVar, final
from uuid import UUID

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.ids import NO_LEADER, ZERO_UUID, TopicId
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.core.min_isr import effective_min_isr
from tidemill.metadata.features.feature_levels import (
    NOT_STORED,
    OLDER_SOFTWARE,
    UNKNOWN_LEVELS,
    FinalizedLevels,
    Software,
    why_kept_out,
)
from tidemill.metadata.image.overrides import ConfigOwner, StoredOverrides
from tidemill.metadata.image.topic_config import TopicConfig

__all__ = [
    "INTERNAL_TOPICS",
    "NO_EPOCH",
    "OFFSETS_TOPIC",
    "SHARE_STATE_TOPIC",
    "TRANSACTION_STATE_TOPIC",
    "BrokerImage",
    "DeletedTopic",
    "Delta",
    "MemberImage",
    "MetadataImage",
    "PartitionImage",
    "Return",
    "TopicImage",
    "changed_keys",
    "controller_endpoint",
    "difference",
    "topic_slices",
]

_Key = TypeVar("_Key", int, ConfigOwner)

NO_EPOCH = -1
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC})
"""They hold the state of coordinators; `special_topics/internal_topics.py` has their settings."""


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
    unheard_controller: int = -1
    """The epoch of a controller that does not answer it; -1: it needs none, or one answers."""
    software: Software = OLDER_SOFTWARE
    """What it runs, and which levels of features that supports."""

    @property
    def peer_endpoint(self) -> Endpoint:
        """Where other brokers reach it."""
        return self.internal or Endpoint(self.host, self.port)


class Return(Enum):
    """What a broker that has registered again still has of what it had."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    """Perhaps not its last records."""
    NEW_DISK = "new disk"
    """Nothing."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberImage:
    """A broker that the controller has let in, alive or not."""

    broker_id: int
    epoch: int
    """The broker epoch that was let in; a broker registered in another one is fenced."""
    rack: str = ""
    directory_id: UUID = ZERO_UUID
    untold: Mapping[int, Return] = field(default_factory=dict)
    """Pages that could not be read when the broker was let in, and what it came back with: their
    partitions do not know of its return yet, and it does not count there."""
    awaits_share: bool = False
    """It has joined and holds less than its share, which the controller is to give it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """The replicas of a partition and its leader.

    isr, elr and suspects are disjoint subsets of replicas, adding and removing are too. The leader,
    if there is one, is in the isr.
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
    suspects: tuple[int, ...] = ()
    """Replicas that left isr or elr by an unclean end since there was a leader: the best ones when
    nobody else is left."""
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment adds; they stay when it is done."""
    removing: tuple[int, ...] = ()
    """Replicas that go when all others are in sync."""
    unclean_epoch: int = NO_EPOCH
    """The last leader epoch that began with a leader from outside isr and elr: followers may have
    to cut what was acknowledged before it."""
    flags: int = 0
    """Of later versions; stored again as they are."""

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when the reassignment that goes on is done; all, if there is none."""
        if not self.removing:
            return self.replicas
        return tuple(one for one in self.replicas if one not in self.removing)

    @property
    def is_moving(self) -> bool:
        """Whether a reassignment goes on."""
        return bool(self.adding or self.removing)

    def in_sync_min(self, configured: int) -> int:
        """How many of these replicas must be in sync."""
        return effective_min_isr(
            configured, len(self.replicas), len(self.adding), len(self.removing)
        )


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
    stored_min_isr: int = 0
    """min.insync.replicas in force, as the controller has stored it; 0: not yet."""

    @property
    def min_isr(self) -> int:
        """min.insync.replicas in force: the same on all brokers, whatever their defaults are."""
        return self.stored_min_isr or self.config.min_insync_replicas

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
    def own_partitions(self) -> tuple[PartitionImage, ...]:
        """Those with replicas of their own: a view only shows the partitions of its base."""
        return () if self.is_view else self.partitions

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
    features: FinalizedLevels = UNKNOWN_LEVELS

    @property
    def features_epoch(self) -> int:
        """Clients keep the levels with the highest epoch that they have seen."""
        epoch = self.features.epoch
        return self.controller_epoch if epoch == NOT_STORED else epoch

    def why_kept_out(self, broker: BrokerImage) -> str | None:
        """Why the controller does not let the broker in, whatever epoch it registers in."""
        return why_kept_out(broker.broker_id, broker.software, self.features)

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

    def own_partition(self, name: str, index: int) -> PartitionImage | None:
        """The same, but None for a view, which has no replicas to decide about."""
        topic = self.topics.get(name)
        return None if topic is None or topic.is_view else self.partition(name, index)


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
    features_changed: bool = False

    @property
    def empty(self) -> bool:
        return not (
            self.topics_changed
            or self.topics_deleted
            or self.brokers_changed
            or self.members_changed
            or self.controller_changed
            or self.overrides_changed
            or self.features_changed
        )


def changed_keys(before: Mapping[_Key, object], after: Mapping[_Key, object]) -> tuple[_Key, ...]:
    """The keys whose values are new, different or gone."""
    if before is after:
        return ()
    both = before.keys() | after.keys()
    return tuple(sorted(one for one in both if before.get(one) != after.get(one)))


def topic_slices(topics: Iterable[TopicImage]) -> Iterator[list[TopicImage]]:
    """As many topics at a time as one turn of the loop decides, or publishes (S11).

    A topic is never divided, so one with very many partitions is a slice of its own.
    """
    some: list[TopicImage] = []
    partitions = 0
    for topic in topics:
        count = max(1, len(topic.partitions))
        if some and partitions + count > PARTITIONS_CHANGED_PER_SLICE:
            yield some
            some, partitions = [], 0
        some.append(topic)
        partitions += count
    if some:
        yield some


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
        brokers_changed=changed_keys(before.brokers, after.brokers),
        members_changed=changed_keys(before.members, after.members),
        controller_changed=(before.controller_broker_id, before.controller_epoch)
        != (after.controller_broker_id, after.controller_epoch),
        overrides_changed=changed_keys(before.overrides, after.overrides),
        features_changed=before.features != after.features,
    )
