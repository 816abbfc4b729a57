"""What a command prints: tables, JSON, and text that came from somebody else made harmless.

A topic name, a key or an error message may hold anything, also what makes a terminal act (S52).
Everything from a peer goes through `escape` before it is shown. rich is imported only when standard
output is a terminal: it costs more than most commands.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence

__all__ = ["escape", "escape_bytes", "print_json", "print_table"]

_SHOWN_AS_IS = frozenset("\t")
_CATEGORIES_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escape(text: str) -> str:
    """`text` with every character that could steer a terminal written as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character in _SHOWN_AS_IS or unicodedata.category(character) not in _CATEGORIES_ESCAPED:
        return character
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte that was not UTF-8, as surrogateescape keeps it
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def escape_bytes(data: bytes | memoryview | None, *, null: str = "") -> str:
    """Bytes as text for a person: UTF-8 where it is, `\\xNN` where it is not."""
    if data is None:
        return null
    return escape(bytes(data).decode("utf-8", "backslashreplace"))


def print_json(facts: object) -> None:
    """One JSON document on one line; ASCII only, so nothing in it can steer a terminal."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=True) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table: by rich on a terminal, else plain and aligned. Numbers stand at the right.

    What is not known (None) is a dash, and keeps a column of numbers a column of numbers.
    """
    listed = [list(row) for row in rows]
    texts = [["-" if cell is None else escape(str(cell)) for cell in row] for row in listed]
    numeric = [_is_numeric([row[index] for row in listed]) for index in range(len(columns))]
    if sys.stdout.isatty():
        _print_rich(columns, texts, numeric)
    else:
        _print_plain(columns, texts, numeric)


def _is_numeric(cells: Sequence[object]) -> bool:
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int) for cell in known)


def _print_plain(columns: Sequence[str], texts: list[list[str]], numeric: Sequence[bool]) -> None:
    lines = [list(columns), *texts]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _print_rich(columns: Sequence[str], texts: list[list[str]], numeric: Sequence[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in texts:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
