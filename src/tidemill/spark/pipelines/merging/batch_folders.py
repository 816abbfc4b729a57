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

    A folder of `full_bytes` or more stays as it is. So rows are copied a bounded number of times,
    however often late lines add to a folder.
    """
    small = sorted(
        folder
        for folder, size in size_bytes.items()
        if folder.query == done.query and folder.last <= done.last and size < full_bytes
    )
    # With the name of one of them, a reader could take the merged folder for that one.
    is_new = len(small) > 1 and BatchFolder.around(small) not in size_bytes
    return small if is_new else []
