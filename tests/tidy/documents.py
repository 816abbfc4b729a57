"""Rules about text files: what must not be in them, and what documents may claim."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.tidy.source import ROOT, Finding
from tools.requirement_table import numbers_in_test_name

LEFTOVER = re.compile(r"\b(?:FIX" r"ME|TO" r"DO|X" r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|root|home)/")
REGISTRY_HOST = re.compile(
    r"\b(?:pypi|python" r"hosted|maven|maven\.apache|npmjs|crates)\.(?:org|io)\b"
)
LOCK_LINE = re.compile(
    r"#.*"
    r"|[a-z0-9][a-z0-9._-]*==[^\s;]+(?: ; [^\\]+)?(?: \\)?"
    r"|    --hash=sha256:[0-9a-f]{64}(?: \\)?"
)
NUMBER = re.compile(r"\b([FTSIR])(\d{1,3})\b")
RANGE = re.compile(r"\b([FTSIR])(\d{1,3})\s?(?:\u2013|-|to)\s?\1(\d{1,3})\b")
HEADING = re.compile(r"#+ ")
NEGATIVE_HEADING = re.compile(r"#+ .*\bnot\b", re.IGNORECASE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
FOLDER = re.compile(r"^[\s|`*-]*((?:[a-z_]+/)+)")


def _search(pattern: re.Pattern[str], path: str, text: str, message: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), start=1):
        found = pattern.search(line)
        if found:
            yield Finding(path, number, f"`{found.group().strip()}`: {message}")


def leftovers(path: str, text: str) -> Iterator[Finding]:
    yield from _search(LEFTOVER, path, text, "do it now, or write it down as an issue")


def machine_paths(path: str, text: str) -> Iterator[Finding]:
    yield from _search(
        MACHINE_PATH, path, text, "a path of one machine; write it relative to the project"
    )


def registry_hosts(path: str, text: str) -> Iterator[Finding]:
    yield from _search(
        REGISTRY_HOST, path, text, "the package client knows where it downloads from; leave it out"
    )


def lock_lines(path: str, text: str) -> Iterator[Finding]:
    """A lock holds names, versions and hashes, nothing else."""
    pinned = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line and not LOCK_LINE.fullmatch(line):
            yield Finding(path, number, f"`{line.strip()}` does not belong here; run `make lock`")
        pinned += "==" in line
    hashed = len(re.findall(r"== ?[^\n]*\\\n    --hash=", text))
    if hashed != pinned:
        yield Finding(path, 1, f"{pinned - hashed} packages have no hash; run `make lock`")


def broken_links(path: str, text: str) -> Iterator[Finding]:
    folder = (ROOT / path).parent
    for number, line in enumerate(text.splitlines(), start=1):
        for target in LINK.findall(line):
            if "://" not in target and not (folder / target).exists():
                yield Finding(path, number, f"links to `{target}`, which does not exist")


def folder_map(path: str, text: str, folders: Iterable[str]) -> Iterator[Finding]:
    """The lines of the section "Folder map" that begin with a folder, against the real ones."""
    mapped = dict(_mapped_folders(text))
    real = set(folders)
    if not mapped:
        yield Finding(path, 1, 'has no section "Folder map" with a line per folder of src/tidemill')
        return
    for folder in sorted(real - set(mapped)):
        yield Finding(path, 1, f"the folder map lacks `{folder}/`: give it a line")
    for folder in sorted(set(mapped) - real):
        yield Finding(path, mapped[folder], f"`{folder}/` is not in src/tidemill: drop the line")


def _mapped_folders(text: str) -> Iterator[tuple[str, int]]:
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        if HEADING.match(line):
            inside = "folder map" in line.lower()
        elif inside and (found := FOLDER.match(line)):
            yield found.group(1).strip("/"), number


def claims(text: str) -> Iterator[tuple[int, str]]:
    """Numbers that a document says hold, with their lines. A range means each number in it.

    A section whose heading has the word "not" (such as "Not there yet") says the opposite.
    """
    negative = False
    for line_number, line in enumerate(text.splitlines(), start=1):
        if HEADING.match(line):
            negative = NEGATIVE_HEADING.match(line) is not None
        if negative:
            continue
        for letter, first, last in RANGE.findall(line):
            yield from ((line_number, f"{letter}{n}") for n in range(int(first), int(last) + 1))
        yield from ((line_number, f"{letter}{int(n)}") for letter, n in NUMBER.findall(line))


def unproven_claims(
    path: str, text: str, *, known: Mapping[str, str], proven: set[str]
) -> Iterator[Finding]:
    for line, number in claims(text):
        if number in known and number not in proven:
            yield Finding(
                path,
                line,
                f"{number} ({known[number]}) is claimed, but no test is named `test_{number}_...`: "
                'write it, or move the claim under a heading with "not"',
            )


def numbers_of_tests(paths: Iterable[Path]) -> set[str]:
    """All numbers that carry a test, as `F20` without leading zeros."""
    return {
        number
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for number in numbers_in_test_name(node.name)
    }
