"""Turns stored nodes into images.

The store may hold nodes that Tidemill did not write (S46). A node that fails its check raises an
alarm and changes nothing: topics, brokers and settings that the image has stay as they were; what
it does not have stays unknown. In particular a topic on a bad page is not a deleted topic, its logs
are not strays, and nobody writes the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import final

from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import KafkaError
from tidemill.core.ids import NO_LEADER
from tidemill.core.limits import TOPICS_RESOLVED_PER_SLICE
from tidemill.core.loop.steps import Steps
from tidemill.metadata.features.feature_levels import BEFORE_FEATURES
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import MEMBERS, PAGES, SETTINGS, page_path
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.overrides import ALL_BROKERS, broker_owner, readable_overrides
from tidemill.metadata.image.page import Page, StoredTopic, decode_page, page_of
from tidemill.metadata.image.stored_fields import BadNode
from tidemill.metadata.image.topic_config import checked_overrides, resolve, topic_defaults
from tidemill.metadata.store.coord import Node

__all__ = ["ImageReader"]


@final
class ImageReader:
    """Reads nodes into a draft of the next image."""

    def __init__(self, live: LiveConfig, alarm: Callable[[str], None]) -> None:
        self._live = live
        self._alarm = alarm
        self.defaults = topic_defaults(live.current)
        """The configuration of a topic without overrides, on this broker, now."""
        self.bad_parts: dict[str, str] = {}
        """Paths of parts of the metadata, and of the controller's node, that could not be read the
        last time, and why."""

    # --- the parts of the metadata ---------------------------------------------------------------

    def read_part(
        self,
        path: str,
        node: Node | None,
        draft: ImageDraft,
        *,
        seq: int,
        known: Iterable[str] = (),
    ) -> Steps[int]:
        """Bring the draft in line with a part that was last changed in `seq`, as the head says.

        `known` are the topics that the image has of a page. Returns the seq that the draft has of
        the part now; 0 for a part that nobody has written.
        """
        if node is None and seq == 0:
            if path == SETTINGS:
                draft.features = BEFORE_FEATURES
            return 0
        try:
            if node is None:
                raise BadNode(path, "missing")
            found = yield from self._read_part(path, node.value, draft, seq, known)
        except BadNode as bad:
            self._note_bad(path, bad)
            return seq
        self.bad_parts.pop(path, None)
        return found

    def _note_bad(self, path: str, bad: BadNode) -> None:
        """It is read again and again until it is mended, and said once."""
        if self.bad_parts.get(path) != str(bad):
            self.bad_parts[path] = str(bad)
            self._alarm(str(bad))

    def _read_part(
        self, path: str, stored: bytes, draft: ImageDraft, newest: int, known: Iterable[str]
    ) -> Steps[int]:
        if path == MEMBERS:
            seq, members = nodes.decode_members(stored)
            _check_seq(path, seq, newest)
            if members != draft.members:
                draft.set_members(members)
            return seq
        if path == SETTINGS:
            return self._read_settings(stored, draft, newest)
        page = yield from decode_page(int(path.removeprefix(f"{PAGES}/")), stored)
        _check_seq(path, page.seq, newest)
        _check_not_older(path, page, draft)
        kept = {topic.topic_id for topic in page.topics}
        for name in sorted(known):
            topic = draft.topic(name)
            if topic is None or topic.topic_id in kept:
                continue
            # A topic of that name on another page is a new one, which was read already.
            if page_path(page_of(topic.topic_id)) == path:
                draft.drop_topic(name)
        for stored_topic in page.topics:
            self._read_topic(stored_topic, draft)
        return page.seq

    def _read_topic(self, stored: StoredTopic, draft: ImageDraft) -> None:
        known = draft.topic(stored.name)
        if (
            known is not None
            and known.topic_id == stored.topic_id
            and known.partitions == stored.partitions
            and known.stored_min_isr == stored.min_isr
            and {**known.overrides, **known.unread} == stored.overrides
        ):
            return
        overrides, unread = self._readable_overrides(stored)
        draft.put_topic(
            TopicImage(
                name=stored.name,
                topic_id=stored.topic_id,
                partitions=stored.partitions,
                overrides=overrides,
                unread=unread,
                config=resolve(overrides, self.defaults),
                stored_min_isr=stored.min_isr,
            )
        )

    def _readable_overrides(self, stored: StoredTopic) -> tuple[dict[str, str], dict[str, str]]:
        """The keys that this version understands, and the others."""
        try:
            return checked_overrides(stored.overrides), {}
        except KafkaError as error:
            self._alarm(f"topic {stored.name}: {error.detail}")
        readable: dict[str, str] = {}
        unread: dict[str, str] = {}
        for name, text in stored.overrides.items():
            try:
                readable.update(checked_overrides({name: text}))
            except KafkaError:
                unread[name] = text
        return readable, unread

    # --- configuration that was set at run time --------------------------------------------------

    def _read_settings(self, stored: bytes, draft: ImageDraft, newest: int) -> int:
        seq, found, features = nodes.decode_settings(stored)
        _check_seq(SETTINGS, seq, newest)
        if features != draft.features:
            draft.features = features
        for owner, keys in found.items():
            known = draft.overrides.get(owner)
            if known is None or {**known.values, **known.unread} != keys:
                draft.put_overrides(owner, readable_overrides(owner, keys, self._alarm))
        for owner in list(draft.overrides):
            if owner not in found:
                draft.drop_overrides(owner)
        return seq

    def apply_overrides(self, draft: ImageDraft) -> Steps[None]:
        """Let the overrides of the draft take effect: in `LiveConfig`, and in all its topics."""
        live, overrides = self._live, draft.overrides
        everywhere, own = (
            overrides[owner].values if owner in overrides else {}
            for owner in (ALL_BROKERS, broker_owner(live.static.node_id))
        )
        for complaint in live.override(cluster=everywhere, own=own):
            self._alarm(f"configuration: {complaint}")
        defaults = topic_defaults(live.current)
        if defaults == self.defaults:
            return
        for index, topic in enumerate(list(draft.topics.values())):
            if index and index % TOPICS_RESOLVED_PER_SLICE == 0:
                yield
            draft.put_topic(replace(topic, config=resolve(topic.overrides, defaults)))
        self.defaults = defaults  # last: if this is cancelled, the next attempt begins anew

    # --- brokers and the controller --------------------------------------------------------------

    def read_controller(self, node: Node | None, draft: ImageDraft) -> None:
        try:
            found = None if node is None else nodes.decode_controller(nodes.CONTROLLER, node)
        except BadNode as bad:
            self._note_bad(nodes.CONTROLLER, bad)
            return
        self.bad_parts.pop(nodes.CONTROLLER, None)
        if found is None:
            draft.set_controller(NO_LEADER, draft.controller_epoch)
        else:
            draft.set_controller(found.broker_id, found.epoch)

    def read_brokers(
        self, base: MetadataImage, found: Sequence[tuple[str, Node]], draft: ImageDraft
    ) -> None:
        for broker in self._decoded_brokers(found):
            draft.put_broker(broker)
        seen = {nodes.try_broker_id(path) for path, _ in found}
        for broker_id in base.brokers:
            if broker_id not in seen:
                draft.drop_broker(broker_id)

    def _decoded_brokers(self, found: Iterable[tuple[str, Node]]) -> list[BrokerImage]:
        brokers: list[BrokerImage] = []
        for path, node in found:
            try:
                brokers.append(nodes.decode_broker(path, node))
            except BadNode as bad:
                self._alarm(str(bad))
        return brokers


def _check_seq(path: str, seq: int, newest: int) -> None:
    """BadNode if a part was put back from a copy: it lacks a write that the head tells of.

    What it lacks may be a leader epoch, which would be given out again (I11), or a topic, whose
    logs would be deleted. A newer part is fine: it was written after the head was read.
    """
    if seq < newest:
        raise BadNode(
            path, f"an old copy was put back: it is of write {seq}, the newest is {newest}"
        )


def _check_not_older(path: str, page: Page, draft: ImageDraft) -> None:
    """BadNode if a page was put back from a copy: its epochs would be given out again (I11)."""
    for stored in page.topics:
        known = draft.topic(stored.name)
        if known is None or known.topic_id != stored.topic_id:
            continue
        before, now = known.own_partitions, stored.partitions
        went_back = any(
            (new.leader_epoch, new.partition_epoch) < (old.leader_epoch, old.partition_epoch)
            for old, new in zip(before, now, strict=False)
        )
        if went_back or len(now) < len(before):
            raise BadNode(path, f"topic {stored.name} is older there than what is known of it")
