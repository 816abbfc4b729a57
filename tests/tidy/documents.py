"""Rules about text files: what must not be in them, and what documents may claim."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.tidy.source import ROOT, Finding
from tools import folder_map
from tools.requirement_table import numbers_in_test_name

LEFTOVER = re.compile(r"\b(?:FIX" r"ME|TO" r"DO|X" r"XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|root|home)/")
REGISTRY_HOST = re.compile(
    r"\b(?:pypi|python" r"hosted|maven|maven\.apache|npmjs|crates)\.(?:org|io)\b"
)
DECISION = re.compile(r"\bD(?:1[0-5]|[1-9])\b")
LOCK_LINE = re.compile(
    r"#.*"
    r"|[a-z0-9][a-z0-9._-]*==[^\s;]+(?: ; [^\\]+)?(?: \\)?"
    r"|    --hash=sha256:[0-9a-f]{64}(?: \\)?"
)
NUMBER = re.compile(r"\b([FTSIR])(\d{1,3})\b")
RANGE = re.compile(r"\b([FTSIR])(\d{1,3})\s?(?:\u2013|-|to)\s?\1(\d{1,3})\b")
HEADING = re.compile(r"#+ ")
NEGATIVE_HEADING = re.compile(r"#+ .*\bnot\b", re.IGNORECASE)
NAMED_FILE = re.compile(r"`([\w./-]+\.(?:py|pxd|c))`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
PURE_LIST = re.compile(r"\*\*Pure\*\* code \(([^)]*)\)")
QUOTED = re.compile(r"`([^`]+)`")
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


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


def decision_numbers(path: str, text: str) -> Iterator[Finding]:
    """Numbers of decisions that no document of the project explains."""
    yield from _search(DECISION, path, text, "cite the ADR of docs/adr, or leave it out")


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


def missing_files(path: str, text: str, files: Iterable[str]) -> Iterator[Finding]:
    """Files named in backquotes, by their whole path or by its end."""
    known = {"/" + name for name in files}
    for number, line in enumerate(text.splitlines(), start=1):
        for name in NAMED_FILE.findall(line):
            if not any(file.endswith("/" + name) for file in known):
                yield Finding(path, number, f"names `{name}`, which does not exist")


def broken_links(path: str, text: str) -> Iterator[Finding]:
    folder = (ROOT / path).parent
    for number, line in enumerate(text.splitlines(), start=1):
        for target in LINK.findall(line):
            if "://" not in target and not (folder / target).exists():
                yield Finding(path, number, f"links to `{target}`, which does not exist")


def stale_folder_map(path: str, text: str, heads: Mapping[str, str]) -> Iterator[Finding]:
    """The section "Folder map", line by line, against the folders and the heads of their files."""
    written = folder_map.map_in(text)
    if written is None:
        yield Finding(path, 1, 'has no section "Folder map" with a line per folder of src/tidemill')
        return
    first = text[: text.index(written)].count("\n") + 1
    made = folder_map.render(dict(heads)).splitlines()
    for number, (has, wants) in enumerate(
        itertools.zip_longest(written.splitlines(), made, fillvalue="nothing"), start=first
    ):
        if has != wants:
            yield Finding(path, number, f"should be `{wants}`: run `python -m tools.folder_map`")
            return


def pure_list(path: str, text: str, pure: Iterable[str]) -> Iterator[Finding]:
    """What the paragraph on **pure** code names in its brackets, against what is checked."""
    found = PURE_LIST.search(text)
    quoted = QUOTED.findall(found.group(1)) if found else []
    claimed = {name for part in quoted for name in _expanded(part)}
    checked = set(pure)
    line = text[: found.start()].count("\n") + 1 if found else 1
    for name in sorted(checked - claimed):
        yield Finding(path, line, f"the list of pure code lacks `{name}`")
    for name in sorted(claimed - checked):
        yield Finding(path, line, f"`{name}` is called pure, but PURE of tests/tidy lacks it")


def _expanded(pattern: str) -> Iterator[str]:
    """`core/{ids,limits}.py` is two files; line breaks may stand between the names."""
    pattern = "".join(pattern.split())
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern)
    if found is None:
        yield pattern
        return
    before, names, after = found.groups()
    yield from (f"{before}{name}{after}" for name in names.split(","))


def missing_rows(path: str, text: str, names: Iterable[str]) -> Iterator[Finding]:
    """Names that should begin a row of a table in this document."""
    rows = set(ROW.findall(text))
    for name in sorted(set(names) - rows):
        yield Finding(path, 1, f"no table has a row for `{name}`")


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
