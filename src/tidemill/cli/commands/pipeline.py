"""`tidemill pipeline`: list, describe, init, run, report."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

import click

from tidemill.cli.session import json_option
from tidemill.cli.text import escape, print_json, print_table
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config.keys import parse_assignments
from tidemill.core.errors import TidemillError, UserError
from tidemill.spark.pipelines.catalogue import PIPELINES, pipeline_kind
from tidemill.spark.pipelines.framework.config_file import (
    ConfiguredPipeline,
    beside_file,
    configure,
    key_rows,
    parse_file,
    template,
)

if TYPE_CHECKING:
    from tidemill.spark.pipelines.framework.progress import StageProgress

__all__ = ["missing_for_spark", "pipeline"]

_PLAIN_EVERY_S = 10.0
"""Between two lines of progress; on a terminal one line is overwritten instead."""

_set_option = click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set one key; repeatable."
)
_config_option = click.option(
    "--config", "config_file", metavar="FILE", help="Settings; `init` writes one with every key."
)


@click.group()
def pipeline() -> None:
    """Run data pipelines on Apache Spark.

    Give the name of a pipeline, or a file that `init` wrote: `tidemill pipeline run ./logs.toml`.
    """


@pipeline.command("list")
@json_option
def list_pipelines(as_json: bool) -> None:
    """List the pipelines."""
    if as_json:
        print_json([{"name": kind.name, "description": kind.description} for kind in PIPELINES])
        return
    print_table(("name", "description"), [(kind.name, kind.description) for kind in PIPELINES])


@pipeline.command()
@click.argument("name")
@json_option
def describe(name: str, as_json: bool) -> None:
    """Show the keys of the pipeline NAME with their defaults and meanings."""
    kind = pipeline_kind(name)
    rows = [made for made, _ in key_rows(kind)]
    if as_json:
        keys = [
            {"key": made.key, "default": made.default, "doc": made.doc, "allowed": made.allowed}
            for made in rows
        ]
        print_json({"name": kind.name, "description": kind.description, "keys": keys})
        return
    click.echo(kind.description)
    cells = [(made.key, made.render(made.default) or "(empty)", made.doc) for made in rows]
    print_table(("key", "default", "meaning"), cells)


@pipeline.command()
@click.argument("name")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
def init(name: str, directory: Path) -> None:
    """Write NAME.toml with every key of the pipeline NAME into DIRECTORY."""
    kind = pipeline_kind(name)
    path = directory / f"{kind.name}.toml"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(kind))
    except FileExistsError:
        raise UserError(f"{path} exists already and was not changed") from None
    click.echo(f"wrote {path}; run it with `tidemill pipeline run {path}`")


@pipeline.command()
@click.argument("name", metavar="NAME|FILE")
@_config_option
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")
@click.option("--once", is_flag=True, help="Process the records that exist now, then stop.")
@click.option("--verbose", is_flag=True, help="Also show what Spark and its JVM print.")
@_set_option
def run(
    name: str,
    config_file: str | None,
    master: str | None,
    once: bool,
    verbose: bool,
    settings: tuple[str, ...],
) -> None:
    """Run a pipeline until Ctrl-C or SIGTERM.

    It continues where its last run stopped (see checkpoint.dir). After a failure it restarts, with
    growing pauses.
    """
    configured = _configured(name, config_file, settings, master)
    missing = missing_for_spark()
    if missing:
        raise TidemillError(missing)
    clock = SystemClock()
    screen = _Screen(configured.kind.name, clock)
    from tidemill.spark.pipelines.framework.execution import execute

    try:
        execute(configured, screen, clock, once=once, verbose=verbose)
    finally:
        screen.close()
    found = configured.pipeline.report()
    click.echo(f"{configured.kind.name}: ended" + (f"; {found}" if found else ""), err=True)


@pipeline.command()
@click.argument("name", metavar="NAME|FILE")
@_config_option
@_set_option
@json_option
def report(name: str, config_file: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Show the results of a pipeline so far, and write its report page. Needs no running Spark."""
    if importlib.util.find_spec("pyarrow") is None:
        raise TidemillError("pyarrow is missing: pip install 'tidemill[spark]'")
    configured = _configured(name, config_file, settings, None)
    table = configured.pipeline.table()
    if table is None:
        raise TidemillError(f"{configured.kind.name} has no results yet")
    if as_json:
        print_json([dict(zip(table.columns, row, strict=True)) for row in table.rows])
        return
    print_table(table.columns, table.rows)
    click.echo(configured.pipeline.report())


def missing_for_spark() -> str | None:
    """One line that says what to install before pipelines can run; None if nothing is missing."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is missing: pip install 'tidemill[spark]'"
    if shutil.which("java") is None:
        return "Java is missing: Spark needs a Java runtime, 17 or newer, on the path"
    return None


def _configured(
    name: str, config_file: str | None, settings: Sequence[str], master: str | None
) -> ConfiguredPipeline:
    """From NAME and a file, from NAME alone, or from a file that names its pipeline."""
    path = config_file
    if path is None and (name.endswith(".toml") or "/" in name):
        path = name
    values = _read(path) if path is not None else {}
    if path is not None and path == name:
        named = values.get("pipeline")
        if not isinstance(named, str):
            raise UserError(f'{path} names no pipeline; add a line such as pipeline = "logs"')
        name = named
    flags: dict[str, object] = dict(parse_assignments(settings))
    if master is not None:
        flags["master"] = master
    kind = pipeline_kind(name)
    if path is not None:
        values = beside_file(kind, values, Path(path).parent)
    return configure(kind, values, flags)


def _read(path: str) -> dict[str, object]:
    try:
        return parse_file(Path(path).read_text(encoding="utf-8"), source=path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path}: {reason}") from error


@final
class _Screen:
    """Reports the progress of the run on standard error."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._is_terminal = sys.stderr.isatty()
        self._progress_at: float | None = None
        self._width = 0

    def show(self, line: str) -> None:
        self._clear()
        click.echo(f"{self._name}: {escape(line)}", err=True)

    def started(self, stages: Sequence[str]) -> None:
        self.show(f"running ({', '.join(stages)})")

    def progressed(self, stages: Sequence[StageProgress]) -> None:
        from tidemill.spark.pipelines.framework.progress import progress_line

        line = escape(progress_line(self._name, stages))
        now = self._clock.monotonic()
        if self._is_terminal:
            columns = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r" + line[:columns].ljust(min(self._width, columns)))
            sys.stderr.flush()
            self._width = len(line)
        elif self._progress_at is None or now - self._progress_at >= _PLAIN_EVERY_S:
            self._progress_at = now
            click.echo(line, err=True)

    def failed(self, reason: str, pause_s: float) -> None:
        self.show(f"failed: {reason}; restarting in {pause_s:g} s")

    def close(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._is_terminal and self._width:
            sys.stderr.write("\n")
            self._width = 0
