"""Keeps this broker's image in line with the store.

Three watches say what changed: the head, the brokers, the controller. `refresh` reads it, and of
the parts only those that the head names as newer; `load` reads everything, after an interrupted
session or a write that did not fit. Callers of either hold the lock of the cluster, so that each
image is built on the last one. What is older than what the image has is ignored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import final

from tidemill.core.errors import StoreUnavailable
from tidemill.core.limits import METADATA_PAGES
from tidemill.core.loop.pacing import Pacer, next_turn, run_steps
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import HEAD, MEMBERS, PAGES, PARTS, SETTINGS, Head
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.image_reader import ImageReader
from tidemill.metadata.image.metadata_image import (
    Delta,
    MetadataImage,
    TopicImage,
    topic_slices,
)
from tidemill.metadata.image.page import page_of
from tidemill.metadata.image.stored_fields import BadNode
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.store.coord import Coord, Node

__all__ = ["ALL", "ImageKeeper"]

ALL = "/"
"""As a path that changed: anything may have."""
_WATCHED = (HEAD, nodes.BROKERS, nodes.CONTROLLER)


@final
class ImageKeeper:
    """The image, what of it is out of date, and the subscribers to its changes."""

    def __init__(self, coord: Coord, reader: ImageReader) -> None:
        self._coord = coord
        self._reader = reader
        self._changed: set[str] = set()
        """Of ALL and the watched paths: what has to be read."""
        self._is_unserved = False
        """Whether there is something to react to, although nothing has to be read."""
        self.found_version = (0, 0)
        """Of the head as it was last read, whatever the image has."""
        self._is_partial = False
        """Whether a change is being published of which the image has a part at most."""
        self._wants_newest = False
        """Whether the next read of the head must not be a moment old."""
        self._subscribers: list[Callable[[Delta], None]] = []
        self._slow_subscribers: list[Callable[[Delta], Steps[None]]] = []
        self._unfinished: deque[Steps[None]] = deque()
        """What slow subscribers still have to do for the image that is in place."""
        self._bug: BaseException | None = None
        """Why one of them never will: nobody may go on with other roles than the image has."""
        self._seqs = dict.fromkeys(PARTS, 0)
        """By part: the seq of what the image has of it."""
        self._settings_seq = -1
        """The seq that the head gave to the settings which the image has; -1: none were read."""
        self._names_by_page: list[set[str]] = [set() for _ in range(METADATA_PAGES)]
        self.image = MetadataImage()
        self.head = Head()
        self.versions: dict[str, int] = {}
        """Versions of the head's and the parts' nodes, to write them on; none if there is none."""
        self.term = -1
        """The version of the controller epoch's node; every write checks it (I33)."""
        self.wakeup = asyncio.Event()
        """Set when there is something to refresh, or the session has changed."""

    @property
    def behind(self) -> bool:
        """Whether the image lacks something that was announced, or was read already."""
        return bool(self._changed) or self._is_partial or bool(self._unfinished)

    @property
    def in_doubt(self) -> bool:
        """Whether all has to be read: perhaps parts were read that the image does not have."""
        return ALL in self._changed

    @property
    def topic_defaults(self) -> TopicConfig:
        """The configuration of a topic without overrides, on this broker."""
        return self._reader.defaults

    @property
    def topics_readable(self) -> bool:
        """Whether every page could be read the last time."""
        return not any(path.startswith(PAGES) for path in self._reader.bad_parts)

    @property
    def unread_pages(self) -> frozenset[int]:
        """Pages that could not be read the last time."""
        bad = self._reader.bad_parts
        return frozenset(int(path[-2:]) for path in bad if path.startswith(PAGES))

    @property
    def has_bad_controller(self) -> bool:
        """Whether a controller is named that could not be read: nobody can take its place."""
        return nodes.CONTROLLER in self._reader.bad_parts

    def is_readable(self, part: str) -> bool:
        """Whether a part could be read; what could not is never written."""
        return part not in self._reader.bad_parts

    @property
    def knows_settings(self) -> bool:
        """Whether the image has the newest settings, also if they cannot be read any more."""
        return self._settings_seq == self.head.parts[SETTINGS]

    def watch(self) -> None:
        """Hear of changes from now on."""
        for path in _WATCHED:
            self._coord.watch(path, self.mark)

    def subscribe(self, on_delta: Callable[[Delta], None]) -> None:
        """Call `on_delta` with each change, as soon as the new image is in place."""
        self._subscribers.append(on_delta)

    def subscribe_in_steps(self, follow: Callable[[Delta], Steps[None]]) -> None:
        """The same for work on every partition of a topic, which is done in slices of the loop.

        Until it is done the image counts as `behind`, and there is no other one. So a subscriber
        sees all changes, one after the other, as if it had heard of each a little later.
        """
        self._slow_subscribers.append(follow)

    def mark(self, path: str) -> None:
        """What is watched at `path` may have changed; ALL means everything."""
        self._changed.add(path)
        self.wakeup.set()

    def serve_again(self) -> None:
        """React to the image once more, although nothing of it has changed."""
        self._is_unserved = True
        self.wakeup.set()

    @property
    def has_news(self) -> bool:
        """Whether there is something to read or to react to."""
        return self.behind or self._is_unserved

    def want_newest(self) -> None:
        """Read what was written until now, also what no watch has announced yet."""
        self._wants_newest = True
        self.mark(HEAD)

    def topics_of_page(
        self, page: int, after: MetadataImage, changed: Iterable[str]
    ) -> list[TopicImage]:
        """The topics on a page in an image that is not published yet, by name.

        `changed` are those on this page that are new or different in it.
        """
        names = self._names_by_page[page].union(changed)
        found = [after.topics[name] for name in sorted(names) if name in after.topics]
        return [topic for topic in found if page_of(topic.topic_id) == page]

    def wrote(self, head: Head, versions: Mapping[str, int]) -> None:
        """A multi with this head was done; `versions` are those of what it wrote."""
        self.head = head
        self.versions.update(versions)
        self._seqs.update((path, head.seq) for path in versions if path != HEAD)
        if SETTINGS in versions:
            self._settings_seq = head.seq

    async def publish(self, draft: ImageDraft) -> None:
        """Make the draft the image, with some of the topics in each turn of the loop (S11).

        Until the last turn the image is that of a broker which has read a part of the pages: it is
        `behind`. What else has changed comes last, because a broker is let in by a change of the
        members, and must know the epochs of its partitions by then.
        """
        await self._end_steps()  # of an image whose publication was cancelled
        self._is_partial = True
        try:
            delta = await self._delta(draft)
            *some, last = list(topic_slices(_changed_topics(delta))) or [[]]
            for topics in some:
                await next_turn()
                await self._put_in_place(self._part(delta, topics))
            if some:
                await next_turn()
        finally:
            self._is_partial = False
        part = self._part(delta, last)
        last_delta = replace(
            delta,
            before=self.image,
            topics_changed=part.topics_changed,
            topics_deleted=part.topics_deleted,
        )
        await self._put_in_place(last_delta)
        self._coord.caught_up(self.versions.get(HEAD, -1))

    async def _delta(self, draft: ImageDraft) -> Delta:
        if draft.overrides is not self.image.overrides:
            await run_steps(self._reader.apply_overrides(draft))
        return draft.finish()

    def _part(self, delta: Delta, topics: Iterable[TopicImage]) -> Delta:
        """The change of these topics alone, with that of their views."""
        part = ImageDraft(self.image)
        for name in (topic.name for topic in topics):
            topic = delta.after.topic(name)
            if topic is None:
                part.drop_topic(name)
            else:
                part.put_topic(topic)
        return part.finish()

    async def _put_in_place(self, delta: Delta) -> None:
        self.image = delta.after
        self._follow_names(delta)
        if delta.empty:
            return
        # Before the others, which may cancel this.
        self._unfinished.extend(follow(delta) for follow in self._slow_subscribers)
        for on_delta in self._subscribers:
            on_delta(delta)
        await self._end_steps()

    async def _end_steps(self) -> None:
        """Let slow subscribers come to the end, also if somebody else had begun that."""
        if self._bug is not None:
            raise self._bug
        try:
            while self._unfinished:
                await run_steps(self._unfinished[0])
                self._unfinished.popleft()
        except asyncio.CancelledError:
            self.wakeup.set()  # whoever refreshes next goes on with it
            raise
        except BaseException as bug:
            self._bug = bug
            self.wakeup.set()  # whoever refreshes next, and so the broker, fails too
            raise

    def _follow_names(self, delta: Delta) -> None:
        for gone in delta.topics_deleted:
            self._names_by_page[page_of(gone.topic_id)].discard(gone.name)
        for name in delta.topics_changed:
            self._names_by_page[page_of(delta.after.topics[name].topic_id)].add(name)

    def _known_names(self, path: str) -> set[str]:
        return self._names_by_page[int(path[-2:])] if path.startswith(PAGES) else set()

    # --- reading ---------------------------------------------------------------------------------

    async def load(self, *, newest: bool = False) -> None:
        """Read everything; what was marked until now still waits to be served."""
        if self.behind:
            self.serve_again()
        self._wants_newest |= newest
        await self._refresh({ALL, *_WATCHED})

    async def refresh(self) -> None:
        """Read what was marked, for the caller to serve."""
        self._is_unserved = False
        await self._refresh({ALL, *_WATCHED} if ALL in self._changed else set(self._changed))

    async def _refresh(self, paths: set[str]) -> None:
        # Cleared first: what changes while we read is marked and read again.
        self._changed.clear()
        newest, self._wants_newest = self._wants_newest, False
        draft = ImageDraft(self.image)
        try:
            if nodes.CONTROLLER in paths:
                await self._read_controller(draft)
            if nodes.BROKERS in paths:
                found = await self._coord.children(nodes.BROKERS)
                self._reader.read_brokers(self.image, found, draft)
            if HEAD in paths:
                await self._read_head(draft, everything=ALL in paths, newest=newest)
            await self.publish(draft)
        except BaseException:
            self._wants_newest |= newest
            self.mark(ALL)
            raise

    async def _read_controller(self, draft: ImageDraft) -> None:
        term = await self._coord.get(nodes.CONTROLLER_EPOCH)
        self.term = -1 if term is None else term.version
        self._reader.read_controller(await self._coord.get(nodes.CONTROLLER), draft)

    async def _read_head(self, draft: ImageDraft, *, everything: bool, newest: bool) -> None:
        node = await self._coord.get(HEAD, newest)
        try:
            if node is None:
                raise BadNode(HEAD, "missing")
            head = Head.decode(node.value)
        except BadNode as bad:
            raise StoreUnavailable(f"the metadata cannot be read: {bad}") from bad
        self.found_version = head.version
        if head.version < self.head.version:
            return
        if everything:
            stored = await self._all_parts()
        else:
            stored = await self._parts(
                path
                for path in PARTS
                if head.parts[path] > self._seqs[path] or not self.is_readable(path)
            )
        await self._read_parts(stored, head, draft)
        self.head = head
        self.versions[HEAD] = node.version

    async def read_bad_again(self) -> None:
        """Whoever mends a part that could not be read need not change the head."""
        bad = [path for path in PARTS if not self.is_readable(path)]
        if not bad:
            return
        draft = ImageDraft(self.image)
        try:
            await self._read_parts(await self._parts(bad), self.head, draft)
            if any(self.is_readable(path) for path in bad):
                self.serve_again()
                await self.publish(draft)
        except BaseException:
            self.mark(ALL)
            raise

    async def _parts(self, paths: Iterable[str]) -> dict[str, Node | None]:
        return {path: await self._coord.get(path) for path in paths}

    async def _all_parts(self) -> dict[str, Node | None]:
        pages = dict(await self._coord.children(PAGES))
        members = await self._coord.get(MEMBERS)
        settings = await self._coord.get(SETTINGS)
        return {path: pages.get(path) for path in PARTS} | {MEMBERS: members, SETTINGS: settings}

    async def _read_parts(
        self, stored: Mapping[str, Node | None], head: Head, draft: ImageDraft
    ) -> None:
        pacer = Pacer(1)  # one page per turn of the loop
        for path, node in stored.items():
            await pacer.step(0 if node is None else 1)
            self._seqs[path] = await run_steps(
                self._reader.read_part(
                    path, node, draft, seq=head.parts[path], known=self._known_names(path)
                )
            )
            if node is not None:
                self.versions[path] = node.version
            if path == SETTINGS and self.is_readable(path):
                self._settings_seq = head.parts[path]


def _changed_topics(delta: Delta) -> Iterator[TopicImage]:
    """The topics that differ, by name, as they are now; those that are gone, as they were."""
    for name in sorted({*delta.topics_changed, *(gone.name for gone in delta.topics_deleted)}):
        yield delta.after.topic(name) or delta.before.topics[name]
