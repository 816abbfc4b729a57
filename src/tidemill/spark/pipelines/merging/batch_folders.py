"""Names of the folders that hold the rows of one batch, or of several that were merged. Pure.

    batch=1f0c2d3e-41           of batch 41 of that query
    batch=1f0c2d3e-3-40         of batches 3 to 40

Whatever folder of the results it stands in: a name with a range says that every row that these
batches have for that folder is there. A batch of the range that is repeated adds nothing to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, final

__all__ = ["BatchFolder", "folders_to_merge"]

_NAME: Final = re.compile(r"batch=([^-]+)-(\d+)(?:-(\d+))?")
_QUERY_CHARS: Final = 8
_RATIO_MAX: Final = 4
"""A copy of a larger folder is at least a quarter larger than that."""
_CHEAP_PART: Final = 64
"""This part of a full folder is copied for every late line: one file less is worth it."""
_FULL_MAX: Final = 4
"""Full files that one merge makes, about."""


@final
@dataclass(frozen=True, slots=True, order=True)
class BatchFolder:
    """The batches `first` to `last` of a query; one batch has the same number twice."""

    query: str
    first: int
    last: int

    @classmethod
    def of_batch(cls, query_id: str, batch_id: int) -> Self:
        return cls(query_id[:_QUERY_CHARS], batch_id, batch_id)

    @classmethod
    def try_parse(cls, name: str) -> Self | None:
        """None if the folder is none of ours."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        made = cls(found[1], int(found[2]), int(found[3] or found[2]))
        # Ours are found again by the name that they get here. `batch=x-007` would not be: its rows
        # would be merged, and stay where they are as well.
        return made if made.name == name and made.first <= made.last else None

    @classmethod
    def around(cls, folders: Iterable[BatchFolder]) -> Self:
        """The folder for the rows of all these, which are of one query."""
        made = list(folders)
        return cls(made[0].query, min(one.first for one in made), max(one.last for one in made))

    @property
    def value(self) -> str:
        """What Spark reads as the column `batch`."""
        numbers = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.query}-{numbers}"

    @property
    def name(self) -> str:
        return f"batch={self.value}"

    @property
    def is_merged(self) -> bool:
        return self.first < self.last

    def has_merged(self, batch: BatchFolder) -> bool:
        """Whether the rows of `batch` are in this folder, among those of other batches."""
        return (
            self.is_merged
            and self.query == batch.query
            and self.first <= batch.first
            and batch.last <= self.last
        )


def folders_to_merge(
    size_bytes: Mapping[BatchFolder, int], done: BatchFolder, full_bytes: int
) -> Sequence[BatchFolder]:
    """Folders of the query of `done`, up to that batch, in their order; empty if it is too few.

    A folder of `full_bytes` or more stays as it is, and so does one of some size that is much
    larger than all that would join it. So the rows of large folders are copied a bounded number of
    times, however often late lines come. And no more is taken than fills a few files, which bounds
    the time and the room for it; the next pass takes the rest.
    """
    small = {
        folder: size
        for folder, size in size_bytes.items()
        if folder.query == done.query and folder.last <= done.last and size < full_bytes
    }
    alike = _alike(small, full_bytes // _CHEAP_PART)
    chosen = _first(alike, full_bytes * _FULL_MAX)
    # With the name of one of them, a reader could take the merged folder for that one.
    is_new = len(chosen) > 1 and BatchFolder.around(chosen) not in size_bytes
    return chosen if is_new else []


def _alike(size_bytes: Mapping[BatchFolder, int], cheap_bytes: int) -> Mapping[BatchFolder, int]:
    """Without those above `cheap_bytes` that are much larger than all smaller ones together."""
    kept = dict(size_bytes)
    total = sum(kept.values())
    for folder in sorted(kept, key=kept.__getitem__, reverse=True):
        others = total - kept[folder]
        if kept[folder] <= max(cheap_bytes, _RATIO_MAX * others):
            break
        del kept[folder]
        total = others
    return kept


def _first(size_bytes: Mapping[BatchFolder, int], bytes_max: int) -> list[BatchFolder]:
    """The first ones in their order, until they have `bytes_max`."""
    chosen: list[BatchFolder] = []
    total = 0
    for folder in sorted(size_bytes):
        if total >= bytes_max:
            break
        chosen.append(folder)
        total += size_bytes[folder]
    return chosen
