from __future__ import annotations

import re

import click

from tests.unit.cli.reference import PATH, render
from tidemill.cli.main import cli


def test_the_reference_page_matches_the_help_of_the_commands():
    assert PATH.read_text(encoding="utf-8") == render(), (
        "run `python -m tests.unit.cli.reference` and look at the difference"
    )


def _documented_commands() -> list[tuple[str, str]]:
    """Every command line of the documents, with the page that has it."""
    root = PATH.parents[2]
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    found = re.compile(r"(?:`|^    (?:.*\| )?)(tidemill [a-z][^`#|>\n]*)", re.MULTILINE)
    return [
        (str(page.relative_to(root)), line.strip())
        for page in pages
        if page != PATH
        for line in found.findall(page.read_text(encoding="utf-8"))
    ]


def _unknown_options(line: str) -> set[str]:
    words = line.split()[1:]
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command = found
        words.pop(0)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    named = {word.partition("=")[0] for word in words if word.startswith("--")}
    return named - known - {"--help"}


def test_the_documents_name_only_options_that_a_command_has():
    commands = _documented_commands()
    assert len(commands) > 100
    assert [one for one in commands if _unknown_options(one[1])] == []
