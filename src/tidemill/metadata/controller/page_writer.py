"""Writes changes of the metadata: pages, members, settings, and the head with them.

A write is one multi: check the controller epoch (I33), put the head on its version, put the changed
parts. Since every write puts the head, all of them are in one order, whoever makes them. A write
that is too long for one multi is several; topics are whole on their pages, so none is ever half
made.

The outcome of a multi can be unknown. Then the head tells: if it is the one that was sent, the
write is done; while it is the one before, the write can still come, so the same is sent again on
the same version, until one of them is settled. If the store does not answer that either, the caller
is told that the outcome is unknown, and nobody waits for the write any more. It must not come later
then: the next write first makes that impossible, by a head of its own on the same version.

All methods are called with the cluster's lock held.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.limits import (
    COORD_MULTI_BYTES_MAX,
    COORD_OPS_PER_MULTI_MAX,
    PAGE_INFLATED_BYTES_MAX,
    PAGE_STORED_BYTES_MAX,
    PARTITIONS_ENCODED_PER_SLICE,
)
from tidemill.core.loop.pacing import Pacer, run_steps
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.head import HEAD, MEMBERS, SETTINGS, Head, page_path
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.image_keeper import ALL, ImageKeeper
from tidemill.metadata.image.metadata_image import (
    Delta,
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.page import StoredTopic, page_of, page_value
from tidemill.metadata.store.coord import Check, Coord, CoordConflict, Create, Op, Put

__all__ = ["CAS_ATTEMPTS_MAX", "PageWriter", "PartTooLarge"]

CAS_ATTEMPTS_MAX = 10
"""How often a compare-and-set is tried on fresh data before the request fails."""
_OTHER_BYTES = 8 * 1024
"""Room for the head and the check in every multi."""
_OTHER_OPS = 2


class PartTooLarge(KafkaError):
    """A request would make a part of the metadata too long; nothing was sent."""

    def __init__(self, path: str) -> None:
        advice = "" if path == SETTINGS else ": make fewer partitions, or several topics of them"
        super().__init__(
            ErrorCode.POLICY_VIOLATION,
            f"{path} of the metadata would be longer than {PAGE_STORED_BYTES_MAX} bytes packed, "
            f"or {PAGE_INFLATED_BYTES_MAX} unpacked{advice}",
        )
        self.path = path


@final
@dataclass(frozen=True, slots=True)
class _Write:
    """One multi: what it puts, and the head that tells whether it was done."""

    term: int
    head: Head
    values: dict[str, bytes]
    versions: dict[str, int | None]
    """Of the nodes before the write; None for one that is to be made."""

    def ops(self) -> list[Op]:
        ops: list[Op] = [Check(nodes.CONTROLLER_EPOCH, self.term)]
        for path, value in [(HEAD, self.head.encode()), *self.values.items()]:
            version = self.versions[path]
            ops.append(Create(path, value) if version is None else Put(path, value, version))
        return ops

    def versions_after(self) -> dict[str, int]:
        return {path: 0 if old is None else old + 1 for path, old in self.versions.items()}


@final
class PageWriter:
    """The one way in which metadata is written."""

    def __init__(self, coord: Coord, keeper: ImageKeeper) -> None:
        self._coord = coord
        self._keeper = keeper
        self._unsettled: _Write | None = None

    async def write(self, draft: ImageDraft, *, term: int, bounded: bool = False) -> None:
        """Write what the draft changes, and publish it.

        `bounded`: PartTooLarge if a part gets too long; elections must not fail for that. After
        CoordConflict or StoreUnavailable the image is out of date and everything is read again.
        """
        if self._unsettled is not None:
            await self.settle()
            self._keeper.mark(ALL)
            raise CoordConflict(HEAD, "the draft is from before the last write")
        delta = draft.finish()
        writes = await self._planned(delta, term=term, bounded=bounded)
        try:
            for write in writes:
                await self._send(write)
            await self._keeper.publish(draft)
        except BaseException:
            self._keeper.mark(ALL)
            raise

    async def settle(self) -> None:
        """After a write whose outcome is unknown: see to it that it cannot come any more."""
        write = self._unsettled
        if write is None:
            return
        node = await self._coord.get(HEAD, newest=True)
        if node is not None and node.version == write.versions[HEAD]:
            touched = self._keeper.head.after((), epoch=0)
            with suppress(CoordConflict):  # it came, or another write did
                await self._coord.multi([Put(HEAD, touched.encode(), node.version)])
        self._unsettled = None

    async def _send(self, write: _Write) -> None:
        self._unsettled = write
        try:
            await self._coord.multi(write.ops())
        except CoordConflict:
            self._unsettled = None
            raise
        except StoreUnavailable:
            await self._send_until_settled(write)
        self._unsettled = None
        self._keeper.wrote(write.head, write.versions_after())

    async def _send_until_settled(self, write: _Write) -> None:
        """Return if the write is done after all; CoordConflict if it never will be."""
        for _ in range(CAS_ATTEMPTS_MAX):
            node = await self._coord.get(HEAD, newest=True)
            if node is not None and node.value == write.head.encode():
                return
            if node is None or node.version != write.versions[HEAD]:
                self._unsettled = None
                raise CoordConflict(HEAD, "another write came first")
            try:
                await self._coord.multi(write.ops())
            except CoordConflict as conflict:
                if conflict.path == nodes.CONTROLLER_EPOCH:
                    self._unsettled = None  # the term is over: it can never fit again
                    raise
            else:
                return
        raise StoreUnavailable("the outcome of the write stays unknown")

    # --- what is written -------------------------------------------------------------------------

    async def _planned(self, delta: Delta, *, term: int, bounded: bool) -> list[_Write]:
        """The multis of a change, in order; encoded in slices of the loop."""
        keeper, pacer = self._keeper, Pacer(PARTITIONS_ENCODED_PER_SLICE)
        if HEAD not in keeper.versions:
            raise StoreUnavailable(f"{HEAD} was not read yet")
        epoch = delta.after.controller_epoch
        head, head_version = keeper.head, keeper.versions[HEAD]
        writes: list[_Write] = []
        values: dict[str, bytes] = {}
        for path, names in changed_parts(delta).items():
            if not keeper.is_readable(path):
                raise StoreUnavailable(f"{path} cannot be read, so it is not written")
            topics = self._topics_on(path, delta.after, names)
            await pacer.step(sum(len(topic.partitions) for topic in topics))
            stored = await run_steps(_encoded(path, head.seq + 1, delta, topics, bounded=bounded))
            if values and not _fits(values, stored):
                writes.append(self._write(head, head_version, values, term=term, epoch=epoch))
                head, head_version, values = writes[-1].head, head_version + 1, {}
                stored = await run_steps(
                    _encoded(path, head.seq + 1, delta, topics, bounded=bounded)
                )
            values[path] = stored
        if values:
            writes.append(self._write(head, head_version, values, term=term, epoch=epoch))
        return writes

    def _write(
        self, head: Head, head_version: int, values: dict[str, bytes], *, term: int, epoch: int
    ) -> _Write:
        versions = {path: self._keeper.versions.get(path) for path in values}
        after = head.after(values, epoch=epoch)
        return _Write(term, after, values, {HEAD: head_version, **versions})

    def _topics_on(
        self, path: str, after: MetadataImage, changed: Sequence[str]
    ) -> list[TopicImage]:
        if path in {MEMBERS, SETTINGS}:
            return []
        return self._keeper.topics_of_page(int(path[-2:]), after, changed)


def changed_parts(delta: Delta) -> dict[str, list[str]]:
    """The paths of the parts that a change has to write, in order, with their changed topics.

    Members come last: a broker is let in only after all its partitions have their new epochs.
    """
    names_by_page: dict[int, list[str]] = {}
    for gone in delta.topics_deleted:
        names_by_page.setdefault(page_of(gone.topic_id), [])
    for name in delta.topics_changed:
        topic = delta.after.topics[name]
        if not _only_mirrors(delta.before.topic(name), topic):
            names_by_page.setdefault(page_of(topic.topic_id), []).append(name)
    has_settings = delta.overrides_changed or delta.features_changed
    parts: dict[str, list[str]] = {SETTINGS: []} if has_settings else {}
    parts |= {page_path(page): names_by_page[page] for page in sorted(names_by_page)}
    return parts | ({MEMBERS: []} if delta.members_changed else {})


def _only_mirrors(before: TopicImage | None, after: TopicImage) -> bool:
    """Whether only the partitions of a view have changed, which are stored with its base."""
    return (
        before is not None
        and before.topic_id == after.topic_id
        and after.is_view
        and (before.overrides, before.unread) == (after.overrides, after.unread)
    )


def _fits(values: dict[str, bytes], more: bytes) -> bool:
    size_bytes = sum(len(path) + len(value) for path, value in values.items()) + len(more)
    return (
        len(values) + _OTHER_OPS < COORD_OPS_PER_MULTI_MAX
        and size_bytes + _OTHER_BYTES <= COORD_MULTI_BYTES_MAX
    )


def _encoded(
    path: str, seq: int, delta: Delta, topics: Sequence[TopicImage], *, bounded: bool
) -> Steps[bytes]:
    value = yield from _value(path, seq, delta, topics)
    if sum(len(topic.partitions) for topic in topics) > PARTITIONS_ENCODED_PER_SLICE:
        yield
    text = stored_fields.text_of(value)
    stored = stored_fields.pack(text)
    is_long = len(text) > PAGE_INFLATED_BYTES_MAX or len(stored) > PAGE_STORED_BYTES_MAX
    if bounded and is_long and not _has_shrunk(path, seq, delta, len(text)):
        raise PartTooLarge(path)
    return stored


def _has_shrunk(path: str, seq: int, delta: Delta, text_bytes: int) -> bool:
    """Settings that are too long already can be made shorter."""
    if path != SETTINGS:
        return False
    before = nodes.settings_value(seq, delta.before.overrides, delta.before.features)
    return text_bytes < len(stored_fields.text_of(before))


def _value(
    path: str, seq: int, delta: Delta, topics: Sequence[TopicImage]
) -> Steps[dict[str, Any]]:
    if path == MEMBERS:
        return nodes.members_value(seq, delta.after.members)
    if path == SETTINGS:
        return nodes.settings_value(seq, delta.after.overrides, delta.after.features)
    return (yield from page_value(seq, map(_stored, topics)))


def _stored(topic: TopicImage) -> StoredTopic:
    overrides = {**topic.overrides, **topic.unread}
    return StoredTopic(
        topic.name, topic.topic_id, overrides, topic.own_partitions, topic.stored_min_isr
    )
