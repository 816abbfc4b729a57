"""The storage media of a simulated machine: files and names, now and after a power loss.

`disk` says what they guarantee; nothing here knows about processes, calls or faults.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, final

from tidemill.core.errors import StorageFault
from tidemill.core.rng import Rng
from tidemill.storage.files.disk import Buffer

__all__ = [
    "PAGE_BYTES",
    "SECTOR_BYTES",
    "Fate",
    "LockHolder",
    "Media",
    "MediaDirectory",
    "MediaFile",
    "NameChange",
    "Node",
    "normal_path",
    "path_parts",
    "used_bytes",
]

T = TypeVar("T")

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@final
@dataclass(slots=True, eq=False)
class MediaFile:
    """A file's bytes, now and after a power loss."""

    current: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending_pages: set[int] = field(default_factory=set)
    size_is_pending: bool = False
    changed_ms: int = 0

    def write(self, data: Buffer, position: int) -> None:
        end = position + len(data)
        if end > len(self.current):
            self.current.extend(bytes(end - len(self.current)))
        if end > len(self.durable):
            self.size_is_pending = True
        self.current[position:end] = data
        self._mark(position, end)

    def resize(self, size: int) -> None:
        old = len(self.current)
        if size < old:
            del self.current[size:]
        else:
            self.current.extend(bytes(size - old))
        self._mark(min(size, old), max(size, old))
        self.size_is_pending = self.size_is_pending or size != old

    def sync(self) -> None:
        if self.size_is_pending:
            _set_length(self.durable, len(self.current))
        for page in sorted(self.pending_pages):
            _copy_range(self.current, self.durable, page * PAGE_BYTES, PAGE_BYTES)
        self.forget_pending()

    def forget_pending(self) -> None:
        """The effect of a failed sync: the pages count as clean and will never be written."""
        self.pending_pages.clear()
        self.size_is_pending = False

    def after_crash(self, fate: Fate) -> MediaFile:
        image = bytearray(self.durable)
        size = len(image)
        if self.size_is_pending:
            size = fate.size(size, len(self.current))
        _set_length(image, max(size, len(image), len(self.current)))
        now = bytearray(self.current)
        _set_length(now, len(image))
        for page in sorted(self.pending_pages):
            for position in fate.sectors_kept(page * PAGE_BYTES):
                _copy_range(now, image, position, SECTOR_BYTES)
        del image[size:]
        return MediaFile(bytearray(image), image, changed_ms=self.changed_ms)

    def _mark(self, start: int, end: int) -> None:
        if end > start:
            self.pending_pages.update(range(start // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1))


@final
@dataclass(slots=True)
class NameChange:
    """One pending change of a directory: `target` now names `node` (None: it is removed)."""

    target: str
    node: Node | None
    source: str | None = None

    def apply(self, names: dict[str, Node]) -> None:
        if self.source is not None and names.get(self.source) is self.node:
            del names[self.source]
        if self.node is None:
            names.pop(self.target, None)
        else:
            names[self.target] = self.node


@final
@dataclass(slots=True)
class MediaDirectory:
    """A directory's names, now and after a power loss."""

    names: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def change(self, change: NameChange) -> None:
        change.apply(self.names)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()

    def after_crash(self, fate: Fate) -> MediaDirectory:
        names = dict(self.durable)
        for change in self.pending:
            if fate.keeps_change():
                change.apply(names)
        survivors = {name: node.after_crash(fate) for name, node in sorted(names.items())}
        return MediaDirectory(survivors, dict(survivors))


Node = MediaFile | MediaDirectory


@final
class Fate:
    """What one power loss keeps. Both extremes are drawn often, mixtures otherwise."""

    _ALL_LOST, _ALL_KEPT, _KINDS = 0, 1, 4

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._kind = rng.below(self._KINDS)

    def size(self, durable: int, current: int) -> int:
        low, high = sorted((durable, current))
        return self._draw(durable, current, lambda: low + self._rng.below(high - low + 1))

    def keeps_change(self) -> bool:
        return self._draw(False, True, lambda: self._rng.below(2) == 0)

    def sectors_kept(self, page_start: int) -> Sequence[int]:
        whole = range(page_start, page_start + PAGE_BYTES, SECTOR_BYTES)
        nothing: Sequence[int] = ()
        return self._draw(nothing, whole, lambda: [at for at in whole if self._rng.below(2) == 0])

    def _draw(self, lost: T, kept: T, by_chance: Callable[[], T]) -> T:
        """One outcome; always the same extreme if this power loss is an extreme one."""
        if self._kind == self._ALL_LOST:
            return lost
        if self._kind == self._ALL_KEPT:
            return kept
        return [lost, kept, by_chance()][self._rng.below(3)]


class LockHolder(Protocol):
    """A file that was opened to hold a lock."""

    def belongs_to(self, disk: object) -> bool: ...


@final
@dataclass(slots=True)
class Media:
    """The media of one machine; processes come and go."""

    root: MediaDirectory = field(default_factory=MediaDirectory)
    capacity_bytes: int | None = None
    used_bytes: int = 0
    wall_ms: Callable[[], int] = lambda: 0
    locks: dict[str, LockHolder] = field(default_factory=dict)

    def try_find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in path_parts(path):
            if not isinstance(node, MediaDirectory) or name not in node.names:
                return None
            node = node.names[name]
        return node

    def file(self, path: str) -> MediaFile:
        node = self.try_find(path)
        if not isinstance(node, MediaFile):
            raise StorageFault(f"{path}: no such file")
        return node

    def directory(self, path: str) -> MediaDirectory:
        node = self.try_find(path)
        if not isinstance(node, MediaDirectory):
            raise StorageFault(f"{path}: no such directory")
        return node


def normal_path(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


def path_parts(path: str) -> list[str]:
    return [name for name in normal_path(path).split("/") if name]


def _set_length(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))


def _copy_range(source: bytearray, target: bytearray, start: int, length: int) -> None:
    end = min(start + length, len(source), len(target))
    if end > start:
        target[start:end] = source[start:end]


def used_bytes(node: Node) -> int:
    if isinstance(node, MediaFile):
        return len(node.current)
    return sum(used_bytes(child) for child in node.names.values())
