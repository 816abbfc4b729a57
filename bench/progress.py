"""The progress of a run: a bar on a terminal, a line per row elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["RunProgress"]


@final
class RunProgress:
    """`begin` names the row that is being measured, `tick` counts its samples."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._done = 0
        self._samples = 0
        self._title = ""
        self._began = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.add_task("", total=self._rows)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, title: str) -> None:
        self._title = title
        self._samples = 0
        self._show()
        if self._bar is None:
            elapsed_s = time.monotonic() - self._began
            place = f"{self._done + 1}/{self._rows}"
            print(f"bench: {elapsed_s:5.0f} s, row {place}: {title}", file=sys.stderr)

    def tick(self) -> None:
        self._samples += 1
        self._show()

    def end(self) -> None:
        self._done += 1
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            sample = f" (sample {self._samples})" if self._samples else ""
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=self._done, description=f"{self._title}{sample}")
