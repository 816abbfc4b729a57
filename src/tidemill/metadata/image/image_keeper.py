"""Keeps this broker's image in line with the store.

Watches mark what changed; `refresh` reads it and publishes the next image. After many changes, or
an interrupted session, everything is read (`load`). Callers of either hold the lock of the cluster,
so that each image is built on the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final
from uuid import UUID

from tidemill.core.limits import CHANGED_PATHS_MAX
from tidemill.metadata.image import nodes
from tidemill.metadata.image.image_reader import ImageReader, StoredNodes
from tidemill.metadata.image.metadata_image import Delta, ImageDraft, MetadataImage
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.store.coord import Coord

__all__ = ["ImageKeeper"]

_KEPT_PREFIXES = (nodes.TOPICS, nodes.PARTITIONS, nodes.BROKERS, nodes.CONFIGS)
_KEPT_PATHS = frozenset({nodes.CONTROLLER, nodes.CONTROLLER_EPOCH})


@final
class ImageKeeper:
    """The image, the parts of it that are out of date, and the subscribers to its changes."""

    def __init__(self, coord: Coord, reader: ImageReader) -> None:
        self._coord = coord
        self._reader = reader
        self._changed: set[str] = set()
        self._all_changed = False
        self._subscribers: list[Callable[[Delta], None]] = []
        self.image = MetadataImage()
        self.term = -1
        """The version of the controller epoch's node; every write checks it (I33)."""
        self.wakeup = asyncio.Event()
        """Set when there is something to refresh, or the session has changed."""

    @property
    def behind(self) -> bool:
        return self._all_changed or bool(self._changed)

    @property
    def topic_defaults(self) -> TopicConfig:
        """The configuration of a topic without overrides, on this broker."""
        return self._reader.defaults

    @property
    def topics_readable(self) -> bool:
        """Whether every stored topic could be read the last time."""
        return not self._reader.unreadable_topics

    def subscribe(self, on_delta: Callable[[Delta], None]) -> None:
        """Call `on_delta` with each change, as soon as the new image is in place."""
        self._subscribers.append(on_delta)

    def mark(self, path: str) -> None:
        """The node at `path` may have changed; "/" means all nodes."""
        if path == "/":
            self._all_changed = True
        elif path.startswith(_KEPT_PREFIXES) or path in _KEPT_PATHS:
            self._changed.add(path)
        else:
            return
        if len(self._changed) > CHANGED_PATHS_MAX:
            self._all_changed = True
            self._changed.clear()
        self.wakeup.set()

    def publish(self, draft: ImageDraft) -> None:
        """Make the draft the image and call the subscribers."""
        if draft.overrides is not self.image.overrides:
            self._reader.apply_overrides(draft)
        delta = draft.finish()
        self.image = delta.after
        if not delta.empty:
            for on_delta in self._subscribers:
                on_delta(delta)

    async def load(self) -> None:
        """Read everything."""
        # Cleared first: a node that changes while we read is marked and read again.
        self._changed.clear()
        self._all_changed = False
        try:
            await self._read_term()
            stored = StoredNodes(
                controller=await self._coord.get(nodes.CONTROLLER),
                configs=await self._coord.scan(nodes.CONFIGS),
                brokers=await self._coord.scan(nodes.BROKERS),
                topics=await self._coord.scan(nodes.TOPICS),
                partitions=await self._coord.scan(nodes.PARTITIONS),
            )
        except BaseException:
            self.mark("/")
            raise
        draft = ImageDraft(self.image)
        self._reader.read_all(self.image, stored, draft)
        self.publish(draft)

    async def refresh(self) -> None:
        """Read what was marked."""
        if self._all_changed:
            await self.load()
            return
        paths = sorted(self._changed)
        self._changed.clear()
        draft = ImageDraft(self.image)
        try:
            for path in paths:
                await self._refresh_other(path, draft)
            scanned = await self._refresh_topics(paths, draft)
            await self._refresh_partitions(paths, scanned, draft)
        except BaseException:
            self.mark("/")
            raise
        self.publish(draft)

    async def _refresh_other(self, path: str, draft: ImageDraft) -> None:
        if path == nodes.CONTROLLER_EPOCH:
            await self._read_term()
        elif path == nodes.CONTROLLER:
            self._reader.read_controller(await self._coord.get(path), draft)
        elif path.startswith(nodes.BROKERS):
            self._reader.read_broker(path, await self._coord.get(path), draft)
        elif path.startswith(nodes.CONFIGS):
            self._reader.read_overrides(path, await self._coord.get(path), draft)

    async def _refresh_topics(self, paths: list[str], draft: ImageDraft) -> set[UUID]:
        scanned: set[UUID] = set()
        for path in paths:
            if not path.startswith(nodes.TOPICS):
                continue
            node = await self._coord.get(path)
            if node is None:
                draft.drop_topic(path.removeprefix(nodes.TOPICS))
                continue
            stored = self._reader.try_decode_topic(path, node)
            if stored is not None:
                found = await self._coord.scan(nodes.partitions_prefix(stored.topic_id))
                self._reader.read_topic(stored, dict(found), draft)
                scanned.add(stored.topic_id)
        return scanned

    async def _refresh_partitions(
        self, paths: list[str], scanned: set[UUID], draft: ImageDraft
    ) -> None:
        places = [nodes.try_partition(path) for path in paths if path.startswith(nodes.PARTITIONS)]
        topic_ids = dict.fromkeys(place[0] for place in places if place is not None)
        for topic_id in topic_ids:
            topic = draft.topic_by_id(topic_id)
            if topic is not None and topic_id not in scanned:
                found = await self._coord.scan(nodes.partitions_prefix(topic_id))
                self._reader.read_partitions(topic, found, draft)

    async def _read_term(self) -> None:
        node = await self._coord.get(nodes.CONTROLLER_EPOCH)
        self.term = -1 if node is None else node.version
