"""Writes docs/reference/cli.md from the commands' help: `python -m tests.unit.cli.reference`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tidemill.cli.main import cli

PATH = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"

HEAD = """\
# The command line

Generated from the help of the commands by `python -m tests.unit.cli.reference`; do not edit.

Exit codes: 0 done, 1 refused or failed, 2 wrong use, 3 no broker reached, 130 interrupted. A
failure prints one line on standard error that says what to do. Tables are drawn on a terminal and
are plain text elsewhere. Text from the cluster is printed with its control characters escaped.
"""


def _commands(ctx: click.Context) -> Iterator[click.Context]:
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            command = ctx.command.get_command(ctx, name)
            assert command is not None
            yield from _commands(_context(command, name, ctx))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(
        command, parent, info_name=name, max_content_width=90, **command.context_settings
    )


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for ctx in _commands(_context(cli, "tidemill", None)):
        level = "#" * (1 + len(ctx.command_path.split()))
        parts.append(f"\n{level} {ctx.command_path}\n\n```text\n{ctx.get_help()}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
