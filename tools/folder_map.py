"""Writes the folder map of ARCHITECTURE.md: a line per folder, from the head of its `__init__.py`.

    python -m tools.folder_map            write the map
    python -m tools.folder_map --check    fail if the map differs from the folders

The order is that of the layers: a folder comes after the folders that it imports.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["head", "main", "map_in", "render", "with_map"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tidemill"
DOCUMENT = ROOT / "ARCHITECTURE.md"
COLUMNS = 120
ORDER = (
    *("core", "hot", "wire", "client", "storage", "metadata", "replication", "coordinators"),
    *("upkeep", "server", "cli", "spark", "testing"),
)
SECTION = re.compile(r"(?<=\n## Folder map\n\n```\n).*?(?=```\n)", re.DOTALL)


def head(source: str) -> str:
    """The first paragraph of a module's docstring, as one line."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def render(heads: dict[str, str]) -> str:
    """The map of folders (`storage/log`) and their heads, a line or two for each."""
    width = max(len(folder) for folder in heads) + 3
    return "".join(_entry(folder, heads[folder], width) for folder in _in_order(heads))


def _entry(folder: str, text: str, width: int) -> str:
    lines = textwrap.wrap(text, COLUMNS - width) or [""]
    names = [f"{folder}/", *("" for _ in lines[1:])]
    return "".join(
        f"{name:<{width}}{line}".rstrip() + "\n" for name, line in zip(names, lines, strict=True)
    )


def _in_order(folders: Iterable[str]) -> list[str]:
    """By layer, and a folder before its children; a folder without a layer comes last."""

    def rank(folder: str) -> tuple[int, list[str]]:
        parts = folder.split("/")
        return ORDER.index(parts[0]) if parts[0] in ORDER else len(ORDER), parts

    return sorted(folders, key=rank)


def map_in(document: str) -> str | None:
    """The map that the document holds now; None without a section "Folder map"."""
    found = SECTION.search(document)
    return found.group() if found else None


def with_map(document: str, folder_map: str) -> str:
    return SECTION.sub(lambda _: folder_map, document)


def heads_of_folders(package: Path = PACKAGE) -> dict[str, str]:
    return {
        path.parent.relative_to(package).as_posix(): head(path.read_text())
        for path in package.rglob("__init__.py")
        if path.parent != package
    }


def main(arguments: Sequence[str]) -> int:
    document = DOCUMENT.read_text()
    written = with_map(document, render(heads_of_folders()))
    if "--check" not in arguments:
        DOCUMENT.write_text(written)
    elif written != document:
        print("ARCHITECTURE.md: the folder map is out of date: run python -m tools.folder_map")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
