"""The next image of the cluster while it is made. Pure.

A draft collects changes, copies only the maps that they touch, and returns the new image in a
`Delta` that names the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import final
from uuid import UUID

from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    DeletedTopic,
    Delta,
    MemberImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
    changed_keys,
)
from tidemill.metadata.image.overrides import ConfigOwner, StoredOverrides

__all__ = ["ImageDraft"]


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
        self.features = base.features
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
            features=self.features,
        )
        return Delta(
            before=base,
            after=after,
            topics_changed=self._changed_topics(after),
            topics_deleted=self._deleted_topics(after),
            brokers_changed=changed_keys(base.brokers, after.brokers),
            members_changed=changed_keys(base.members, after.members),
            controller_changed=self._controller
            != (base.controller_broker_id, base.controller_epoch),
            overrides_changed=changed_keys(base.overrides, after.overrides),
            features_changed=base.features != after.features,
        )

    def _mirror_views(self) -> Mapping[str, tuple[str, ...]]:
        """Give views the partitions of their bases; the views that there are now.

        A view is stored without partitions. Whoever looks it up finds those of its base; it has
        none while the base is not known.
        """
        before, now, touched = self._base.topics, self.topics, self._touched
        views = _views_after(self._base.views, ((before.get(one), now.get(one)) for one in touched))
        # Mostly there are none, and very many topics may be touched at once.
        for name in list(touched) if views else ():
            topic = now.get(name)
            affected = (name,) if topic is not None and topic.is_view else views.get(name, ())
            for view in (now[one] for one in affected):
                base = now.get(view.view_of)
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
            if topic is not None and (base := topic.config.tidemill_view_of):
                names = changed.setdefault(base, set(views.get(base, ())))
                names.discard(topic.name)
                if topic is after:
                    names.add(topic.name)
    if not changed:
        return views
    merged = {**views, **{base: tuple(sorted(names)) for base, names in changed.items()}}
    return {base: names for base, names in merged.items() if names}
