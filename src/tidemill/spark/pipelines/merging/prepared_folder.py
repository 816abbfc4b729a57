"""One folder of results: its batches merged beside it, then put in its place.

    prepare   everything that is not merged is linked into a folder of the staging area, and the
              merged files are written there; all of it is synced
    publish   if both are still what they were, the two change places, in one step
    discard   what is in the staging area now, old or outdated, is removed

Readers see the folder as it was or as it is, and no row in both. A reader that has listed old files
and opens them after the swap fails: no such file. But many readers list a folder and then look at
each name, and Hadoop's local file system skips names that have gone in between. A swap at that
moment would look like an empty folder. So an empty folder with the name of the merged one is there
before the swap: such a reader has that name too, and finds the merged rows under it.

A crash leaves something in the staging area, which the next run removes, and perhaps that empty
folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, final

from tidemill.spark.pipelines.merging.batch_folders import BatchFolder, folders_to_merge
from tidemill.spark.pipelines.merging.folder_swap import swap_folders, sync_folder, sync_tree
from tidemill.spark.pipelines.merging.parquet_merge import FULL_BYTES, merged_files
from tidemill.spark.pipelines.merging.result_folders import is_result_file

__all__ = ["PreparedFolder"]

_FREE_SPACE_FACTOR: Final = 4
"""Results come first: nothing is merged on a disk that has less room than this many copies."""

Listing = frozenset[tuple[str, int, int]]


@final
class PreparedFolder:
    """`folder`, and its successor in `staged`."""

    def __init__(self, folder: Path, staged: Path) -> None:
        self._folder = folder
        self._staged = staged
        self._before: Listing = frozenset()
        """The folder as it was read."""
        self._made: Listing = frozenset()
        """The successor as it was made."""
        self._announced: Path | None = None
        self.merged: BatchFolder | None = None
        """What the successor has; None if there is nothing to merge."""

    def prepare(self, done: BatchFolder) -> Iterator[None]:
        """Make the successor. Yields between two short pieces of work."""
        self._before = _listing(self._folder)
        inputs = _mergeable(self._folder)
        sizes = {batch: _size_bytes(files) for batch, files in inputs.items()}
        chosen = folders_to_merge(sizes, done, FULL_BYTES)
        if not chosen or not self._has_room(sum(sizes[batch] for batch in chosen)):
            return
        merged = BatchFolder.around(chosen)
        self.discard()
        self._announced = self._folder / merged.name
        self._announced.mkdir(exist_ok=True)
        shutil.copymode(self._folder / chosen[0].name, self._announced)  # readers list it too
        yield
        self._link_others({batch.name for batch in chosen})
        yield
        target = self._staged / merged.name
        target.mkdir()
        yield from merged_files([file for batch in chosen for file in inputs[batch]], target)
        shutil.copymode(self._folder / chosen[0].name, target)
        sync_tree(self._staged)
        self._made = _listing(self._staged)
        self.merged = merged

    def publish(self) -> bool:
        """Put the successor in its place. False if one of the two is not what it was.

        The caller makes sure that no batch is written meanwhile. The successor may have waited long
        for that, in a folder that users take for temporary.
        """
        try:
            if _listing(self._folder) != self._before or _listing(self._staged) != self._made:
                return False
            swap_folders(self._staged, self._folder)
        except FileNotFoundError:  # a user is removing the folder
            return False
        return True

    def discard(self) -> None:
        """Remove what is staged; a published successor is durable before its inputs go."""
        if self._announced is not None:
            with contextlib.suppress(OSError):  # it is not empty if it was published
                self._announced.rmdir()
        if self._staged.exists():
            with contextlib.suppress(FileNotFoundError):  # a user has removed more than the folder
                sync_folder(self._folder.parent)
            sync_folder(self._staged.parent)
            shutil.rmtree(self._staged)

    def _has_room(self, size_bytes: int) -> bool:
        return shutil.disk_usage(self._folder).free >= _FREE_SPACE_FACTOR * size_bytes

    def _link_others(self, left_out: set[str]) -> None:
        """Files that are not merged appear in both folders: two names of the same file."""

        def ignored(place: str, names: list[str]) -> set[str]:
            if Path(place) != self._folder:
                return set()
            return left_out | {name for name in names if _is_empty_batch(self._folder / name)}

        self._staged.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copytree(
                self._folder, self._staged, symlinks=True, ignore=ignored, copy_function=os.link
            )
        except shutil.Error as error:  # it has gone on after each, and hides their types
            if all(os.path.lexists(source) for source, _, _ in error.args[0]):
                raise
            raise FileNotFoundError(f"{self._folder} has changed") from error


def _listing(folder: Path) -> Listing:
    """Everything in it; a file that is written again has another inode."""
    found: set[tuple[str, int, int]] = set()
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            facts = path.lstat()
            found.add((str(path), facts.st_ino, facts.st_size))
    return frozenset(found)


def _mergeable(folder: Path) -> dict[BatchFolder, Sequence[Path]]:
    """The files of each batch. A folder with anything but Spark's own files is left alone."""
    found: dict[BatchFolder, Sequence[Path]] = {}
    for path in sorted(folder.iterdir()):
        batch = BatchFolder.try_parse(path.name)
        if batch is None or not path.is_dir():
            continue
        inside = sorted(path.iterdir())
        files = [file for file in inside if is_result_file(file.name) and file.is_file()]
        ours = {name for file in files for name in (file.name, f".{file.name}.crc")}
        # Merging removes what is inside: a file that a user has hidden there is not ours to remove.
        if files and all(file.name in ours for file in inside):
            found[batch] = files
    return found


def _is_empty_batch(path: Path) -> bool:
    named = BatchFolder.try_parse(path.name)
    return named is not None and path.is_dir() and not any(path.iterdir())


def _size_bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)
