"""The demo's table of finished minutes: redrawn by rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, final

import click

from tidemill.cli.text import escape
from tidemill.spark.pipelines.logs.minute_table import MINUTE_COLUMNS, minute_row
from tidemill.spark.pipelines.logs.minutes import Minute

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["GrowingTable", "growing_table"]

_WIDTHS = (16, 9, 8, 7, 7, 7, 8, 6, 7, 7, 7, 0)
_ROWS_SHOWN_MAX = 30


class GrowingTable(Protocol):
    """A table that grows by one row at a time."""

    def add(self, minute: Minute) -> None: ...

    def show_status(self, status: str) -> None:
        """Show a line of status; it replaces the last one."""
        ...


@contextlib.contextmanager
def growing_table() -> Iterator[GrowingTable]:
    """A table for standard error, drawn if that is a terminal."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield _Drawn(live)


def _texts(minute: Minute) -> list[str]:
    return [
        "-" if cell is None else f"{cell:,}" if isinstance(cell, int) else escape(str(cell))
        for cell in minute_row(minute)
    ]


@final
class _Lines:
    def __init__(self) -> None:
        self._is_begun = False

    def add(self, minute: Minute) -> None:
        if not self._is_begun:
            self._is_begun = True
            self._write(list(MINUTE_COLUMNS))
        self._write(_texts(minute))

    def show_status(self, status: str) -> None:
        """Ignored: printed lines stay, so only results are printed."""

    def _write(self, cells: list[str]) -> None:
        padded = [cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)]
        click.echo(" ".join(padded).rstrip(), err=True)


@final
class _Drawn:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._rows: list[list[str]] = []
        self._status = ""

    def add(self, minute: Minute) -> None:
        self._rows.append(_texts(minute))
        del self._rows[:-_ROWS_SHOWN_MAX]
        self._draw()

    def show_status(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._draw()

    def _draw(self) -> None:
        self._live.update(self._table(), refresh=True)

    def _table(self) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=Text(self._status))
        for column in MINUTE_COLUMNS:
            table.add_column(column, justify="left" if column == "top path" else "right")
        for row in self._rows:
            table.add_row(*(Text(cell) for cell in row))
        return table
