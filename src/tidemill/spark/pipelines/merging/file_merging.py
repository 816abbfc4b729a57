"""Merges the small files of a pipeline's results, in short steps between other work.

Every batch writes a folder of its own, so that a batch that is repeated replaces its own files. In
a closed folder, one that the watermark has passed, all batches up to the last one that is done are
merged (`prepared_folder`). Late lines may still come: they make the folder one to merge again.

    output.dir                      locked by writers of batches, and for a swap
    output.dir/events, minutes      what readers see
    output.dir/.merge/QUERY         staging area of a query: never seen, removed at any time

The batch thread calls `writing`, in it `merged_labels`, and `batch_written`; one other thread calls
`step`. The file system must be able to swap two folders in one step; elsewhere nothing is merged.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from tidemill.core.clock import Clock
from tidemill.spark.bridge.local_path import try_local_path
from tidemill.spark.pipelines.merging.batch_folders import BatchFolder
from tidemill.spark.pipelines.merging.folder_swap import check_swap
from tidemill.spark.pipelines.merging.prepared_folder import PreparedFolder
from tidemill.spark.pipelines.merging.result_folders import ResultFolder, ResultTree
from tidemill.spark.pipelines.merging.write_lock import WriteLock

__all__ = ["FileMerging"]

_log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
_AREA: Final = ".merge"
_READY_MAX: Final = 8
_NOTICE_S: Final = 1.0
"""Between announcing a merged folder and the swap. A reader that has listed the names of a folder
before it was announced looks at them within milliseconds, and must not find the merged one then."""
_DISK_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""The next folder would meet them too."""


@final
@dataclass(frozen=True, slots=True)
class _Progress:
    """How far the query has come."""

    done: BatchFolder
    """The last batch that its checkpoint records as done."""
    watermark_ms: int


@final
@dataclass(frozen=True, slots=True)
class _Area:
    """Where results are, and the folder beside them."""

    trees: Mapping[str, ResultTree]
    """By name."""
    folder: Path
    lock: WriteLock
    can_lock: bool
    """Where it is False nothing is merged: not by this run, nor by another that meets the same."""


@final
class FileMerging:
    """The results in one output directory, as one run of a pipeline merges them."""

    def __init__(
        self, output_dir: str, trees: Mapping[str, bool], *, is_active: bool, clock: Clock
    ) -> None:
        """`trees`: whether each folder of the output directory has folders for hours."""
        self._output_dir = output_dir
        self._is_active = is_active
        self._clock = clock
        self._last_merged: dict[str, int] = {}
        """The newest merged batch of a query, in any folder."""
        self._progress: _Progress | None = None
        self._passed_hour = -1
        """The hour of the watermark of the last pass."""
        self._pass: Iterator[None] | None = None
        self._ready: list[tuple[float, PreparedFolder]] = []
        """At most `_READY_MAX` and since when, which wait until no batch is written."""
        self._replaced: list[PreparedFolder] = []
        """What is to be removed of those that were published, or had changed."""
        self._left_alone: set[Path] = set()
        """Folders that cannot be merged, for the rest of the run."""
        self._area = self._try_open(trees)
        """None if the results are elsewhere, and so never merged."""

    # --- for the writer of batches ---------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Batches are written inside this block."""
        area = self._area
        with area.lock.writing() if area and area.can_lock else contextlib.nullcontext():
            yield

    def merged_labels(self, tree: str, batch: BatchFolder) -> list[str]:
        """Folders in which the rows of `batch` have been merged: repeating it adds nothing there.

        A batch that is done is merged, and repeated only if its checkpoint has lost that.
        """
        area = self._area
        if area is None or batch.last > _last_merged(area, batch.query, self._last_merged):
            return []
        return [
            folder.label
            for folder in area.trees[tree].folders()
            if any(made.has_merged(batch) for made in folder.batches())
        ]

    def batch_written(self, batch: BatchFolder, watermark_ms: int) -> None:
        """`batch` is written, so the checkpoint has all before it."""
        done = BatchFolder(batch.query, batch.first - 1, batch.last - 1)
        self._progress = _Progress(done, watermark_ms)

    # --- for the thread that merges --------------------------------------------------------------

    def step(self) -> bool:
        """Do some of the work: a fraction of a second. False if there is none for a second."""
        if self._area is None or not self._is_active:
            return False
        try:
            self._publish(self._area)
            if self._replaced:
                self._replaced.pop().discard()
                return True
            return self._advance(self._area)
        except OSError as error:
            self._give_up(str(error))
            return False

    def _give_up(self, reason: str) -> None:
        """For the rest of the run. Copies go: on a full disk, results need their room."""
        if self._is_active:
            self._tell(reason)
        self._pass, self._is_active = None, False
        with contextlib.suppress(OSError):
            for prepared in [ready for _, ready in self._ready] + self._replaced:
                prepared.discard()
        self._ready, self._replaced = [], []

    def _advance(self, area: _Area) -> bool:
        self._pass = self._pass or self._new_pass(area)
        if self._pass is None or len(self._ready) >= _READY_MAX:
            return False
        try:
            next(self._pass)
        except StopIteration:
            self._pass = None
            return bool(self._ready)
        return True

    def _new_pass(self, area: _Area) -> Iterator[None] | None:
        """One through all folders, whenever the watermark has reached another hour."""
        progress = self._progress
        if progress is None or progress.watermark_ms // _HOUR_MS == self._passed_hour:
            return None
        if self._ready:  # it would prepare these again, in the same place
            return None
        staging = area.folder / progress.done.query
        if self._passed_hour < 0 and staging.exists():
            _remove_leftovers(area, staging)
        self._passed_hour = progress.watermark_ms // _HOUR_MS
        return self._pass_over(area, staging, progress)

    def _pass_over(self, area: _Area, staging: Path, progress: _Progress) -> Iterator[None]:
        for name, tree in area.trees.items():
            for folder in tree.folders():
                is_closed = folder.end_ms <= progress.watermark_ms and not folder.is_linked
                if is_closed and folder.path not in self._left_alone:
                    yield from self._prepare(folder, staging / name / folder.label, progress.done)
                yield

    def _prepare(self, folder: ResultFolder, staged: Path, done: BatchFolder) -> Iterator[None]:
        prepared = PreparedFolder(folder.path, staged)
        try:
            if sum(1 for _ in folder.batches()) > 1:
                yield from prepared.prepare(done)
        except FileNotFoundError:  # a user has removed the folder, or a part of it
            prepared.discard()
        except (OSError, ValueError, pa.ArrowException) as error:
            prepared.discard()
            if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
                raise
            # One folder that cannot be read must not keep all others from being merged. Arrow
            # raises OSErrors for damaged files too.
            self._left_alone.add(folder.path)
            _log.warning("the files in %s are not merged: %s", folder.path, error)
        if prepared.merged is not None:
            self._ready.append((self._clock.monotonic(), prepared))

    def _publish(self, area: _Area) -> None:
        if not self._ready:
            return
        # One at a time: a batch waits for the comparing of one folder, not of all.
        since_s, prepared = self._ready[0]
        if self._clock.monotonic() - since_s < _NOTICE_S:
            return
        with area.lock.try_swapping() as may_swap:
            if not may_swap:
                return
            merged = prepared.merged
            if merged is not None and prepared.publish():
                newest = _last_merged(area, merged.query, self._last_merged)
                self._last_merged[merged.query] = max(newest, merged.last)
        del self._ready[0]
        self._replaced.append(prepared)

    # --- where it works --------------------------------------------------------------------------

    def _try_open(self, trees: Mapping[str, bool]) -> _Area | None:
        """Also if nothing is to be merged: another run may merge, and an earlier one may have."""
        output = try_local_path(self._output_dir)
        if output is None:
            self._give_up("they are not on a local path")
            return None
        lock, can_lock = WriteLock(output), True
        try:
            with lock.writing():
                pass
        except OSError as error:
            can_lock = False
            self._give_up(str(error))
        if self._is_active:
            try:
                check_swap(output / _AREA)
            except OSError as error:
                self._give_up(str(error))
        found = {name: ResultTree(output / name, by_hour) for name, by_hour in trees.items()}
        return _Area(found, output / _AREA, lock, can_lock)

    def _tell(self, reason: str) -> None:
        _log.warning("the small files in %s are not merged: %s", self._output_dir, reason)


def _remove_leftovers(area: _Area, staging: Path) -> None:
    """Of a run that was killed.

    If that was right after a swap, the files here are the inputs of a folder that is not durable
    in its place yet. So each is discarded like one of this run, which syncs first.
    """
    for name, tree in area.trees.items():
        for folder in tree.folders():
            PreparedFolder(folder.path, staging / name / folder.label).discard()
    shutil.rmtree(staging)


def _last_merged(area: _Area, query: str, known: dict[str, int]) -> int:
    """From `known`; the folders are searched once for each query."""
    if query not in known:
        found = (
            made.last
            for tree in area.trees.values()
            for folder in tree.folders()
            for made in folder.batches()
            if made.query == query and made.is_merged
        )
        # The other thread may have merged more meanwhile.
        known.setdefault(query, max(found, default=-1))
    return known[query]
