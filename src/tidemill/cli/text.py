"""Output of commands: tables, JSON, and escaped text from a peer.

A topic name, a key or an error message may hold any bytes, also terminal control sequences (S52).
Everything from a peer goes through `escape` before it is shown. rich is imported only if standard
output is a terminal: the import takes longer than most commands.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from tidemill.core.errors import KafkaError

__all__ = ["drop_stdout", "escape", "escape_bytes", "print_json", "print_table", "say_deleted"]

_SHOWN_AS_IS = frozenset("\t")
_CATEGORIES_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escape(text: str) -> str:
    """`text` with every character that could control a terminal escaped."""
    if text.isprintable():
        return text
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character in _SHOWN_AS_IS or unicodedata.category(character) not in _CATEGORIES_ESCAPED:
        return character
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte that was not UTF-8, decoded by surrogateescape
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def escape_bytes(data: bytes | memoryview | None, *, null: str = "") -> str:
    """Bytes as readable text: UTF-8 where valid, `\\xNN` elsewhere."""
    if data is None:
        return null
    return escape(bytes(data).decode("utf-8", "backslashreplace"))


def drop_stdout() -> None:
    """The reader of our output is gone: the interpreter's last flush must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(facts: object) -> None:
    """Print one JSON document on one line; ASCII only, so it cannot control a terminal."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=True) + "\n")


def say_deleted(outcomes: Mapping[str, KafkaError | None]) -> None:
    """A line for each topic that is gone. KafkaError, with the reasons, if one is not."""
    refused = {name: refusal for name, refusal in outcomes.items() if refusal is not None}
    for name in outcomes:
        if name not in refused:
            sys.stdout.write(f"deleted {escape(name)}\n")
    if refused:
        reasons = (f"{name}: {one.detail}" if one.detail else name for name, one in refused.items())
        first = next(iter(refused.values()))
        raise KafkaError(first.code, f"not deleted: {'; '.join(reasons)}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: with rich on a terminal, else plain and aligned. Numbers are right-aligned.

    An unknown value (None) is a dash; a column of numbers with dashes stays right-aligned.
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
