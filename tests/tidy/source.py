"""What the tidy rules look at: the project's files, parsed once, and how a finding is told.

A rule is a plain function from a module (or a text file) to findings. A finding names the place
and what to write instead, since a rule that only says "no" sends the reader searching.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tidemill"
NOT_OURS = frozenset(
    {".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
    | {"__pycache__"}
)
NOT_OURS_IN_ROOT = NOT_OURS | {"build", "dist", "data"}
"""Products of a build, and what a broker started in the checkout leaves behind."""


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file of the package; `path` is relative to src/tidemill, with slashes."""

    path: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The dotted name, as it is imported."""
        parts = self.path.removesuffix(".py").split("/")
        if parts[-1] == "__init__":
            parts.pop()
        return ".".join(["tidemill", *parts])

    @property
    def package(self) -> str:
        """The first name below `tidemill`: a folder, or a file of the root."""
        return self.path.removesuffix(".py").split("/")[0]

    def finding(self, node: ast.AST | int, message: str) -> Finding:
        line = node if isinstance(node, int) else getattr(node, "lineno", 1)
        return Finding(f"src/tidemill/{self.path}", line, message)


def snippet(path: str, text: str) -> Module:
    """A module that exists only in a test of the rules."""
    return Module(path, ast.parse(text))


@cache
def package_modules() -> tuple[Module, ...]:
    return tuple(
        Module(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(), str(path)))
        for path in sorted(PACKAGE.rglob("*.py"))
    )


@cache
def project_files() -> tuple[Path, ...]:
    """Every file that belongs to the project, whether committed yet or not."""
    return tuple(sorted(_walk(ROOT)))


def _walk(folder: Path) -> Iterator[Path]:
    skipped = NOT_OURS_IN_ROOT if folder == ROOT else NOT_OURS
    for path in sorted(folder.iterdir()):
        if path.name in skipped or path.name.endswith(".egg-info"):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)
        elif path.is_file():
            yield path


@cache
def harness_trees() -> tuple[tuple[str, ast.Module], ...]:
    """Every Python file outside src, by its path relative to the project."""
    return tuple(
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for path in project_files()
        if path.suffix == ".py" and ROOT / "src" not in path.parents
    )


def text_of(path: Path) -> str | None:
    """The file's text, or None for a binary file (a golden fixture, a compiled module)."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def matches(path: str, patterns: Iterable[str]) -> bool:
    """A pattern is a file (`core/net.py`), a folder (`wire/`) or any folder's `**/shard.py`."""
    return any(_matches(path, pattern) for pattern in patterns)


def _matches(path: str, pattern: str) -> bool:
    if pattern.endswith("/"):
        return path.startswith(pattern)
    if pattern.startswith("**/"):
        return path.rsplit("/", 1)[-1] == pattern.removeprefix("**/")
    return path == pattern


def imported_names(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Each import, as a dotted name: `from a.b import c` gives `a.b.c`. Lazy imports count too."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def assert_none(findings: Iterable[Finding]) -> None:
    """Fail with all findings at once, one per line."""
    lines = sorted({(found.path, found.line, str(found)) for found in findings})
    assert not lines, "\n" + "\n".join(text for _, _, text in lines)
