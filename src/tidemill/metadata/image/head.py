"""The head: what the newest version of each part of the metadata is. Pure.

The metadata is stored in parts: 64 pages of topics, the members, the settings. A write changes some
parts and the head in one multi, on the version of the head; so all writes are in one order, and
whoever has read the head knows which parts to read again. `(epoch, seq)` is the version of it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from tidemill.core.config.keys import INT64_MAX
from tidemill.core.limits import METADATA_PAGES
from tidemill.metadata.image import stored_fields

__all__ = ["HEAD", "MEMBERS", "PAGES", "PARTS", "SETTINGS", "Head", "page_path"]

HEAD = "/head"
PAGES = "/pages"
MEMBERS = "/members"
SETTINGS = "/settings"


def page_path(page: int) -> str:
    return f"{PAGES}/{page:02}"


_PAGE_PATHS = tuple(page_path(page) for page in range(METADATA_PAGES))
PARTS = (MEMBERS, SETTINGS, *_PAGE_PATHS)
"""The paths of all parts, in the order in which they are read."""


@final
@dataclass(frozen=True, slots=True)
class Head:
    """The versions of all parts; a part that was never written has version 0."""

    epoch: int = 0
    """The controller epoch of the last write."""
    seq: int = 0
    """Rises by one with every write."""
    parts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    """By path: the seq of the last write that changed the part."""

    @property
    def version(self) -> tuple[int, int]:
        """Of all metadata: the higher one is newer."""
        return self.epoch, self.seq

    def after(self, changed: Iterable[str], *, epoch: int) -> Head:
        """The head of a write that changes these parts."""
        seq = self.seq + 1
        return Head(max(epoch, self.epoch), seq, {**self.parts, **dict.fromkeys(changed, seq)})

    def encode(self) -> bytes:
        return stored_fields.dump(
            {
                "epoch": self.epoch,
                "seq": self.seq,
                "members": self.parts[MEMBERS],
                "settings": self.parts[SETTINGS],
                "pages": [self.parts[path] for path in _PAGE_PATHS],
            }
        )

    @staticmethod
    def decode(stored: bytes) -> Head:
        value = stored_fields.load(HEAD, stored)
        seq = value.number("seq", 0, INT64_MAX)
        pages = value.numbers("pages", seq)
        if len(pages) != METADATA_PAGES:
            raise value.bad(f"{len(pages)} pages, not {METADATA_PAGES}")
        parts = {
            MEMBERS: value.number("members", 0, seq),
            SETTINGS: value.number("settings", 0, seq),
            **dict(zip(_PAGE_PATHS, pages, strict=True)),
        }
        return Head(value.number("epoch", 0, INT64_MAX), seq, parts)
