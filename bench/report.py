"""The report of a run: a table for people, and a file with every sample."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, final

from bench.judgement import Outcome, Verdict, held_value, judge, ratio

__all__ = ["Report", "print_table", "table_lines", "write_json"]

COLUMNS = ("row", "tidemill", "other", "ratio", "bar", "CPU s/M", "other's", "")
_FIGURES = 3


@final
@dataclass(slots=True, kw_only=True)
class Report:
    """One run: its environment, its outcomes, and the rows that failed."""

    facts: dict[str, Any]
    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Row -> why it could not be measured."""
    warnings: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if judge(outcome) is Verdict.MISSED]


def table_lines(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One tuple of cells per outcome, in the order of `COLUMNS`."""
    return [_cells(outcome) for outcome in outcomes]


def print_table(report: Report, stream: TextIO) -> None:
    """Print a framed table on a terminal, plain columns elsewhere."""
    lines = table_lines(report.outcomes)
    if stream.isatty():
        _print_rich(lines, stream)
    else:
        _print_plain(lines, stream)
    for outcome in report.outcomes:
        if outcome.note:
            print(f"{outcome.title}: {outcome.note}", file=stream)
    for row, reason in report.failures.items():
        print(f"{row}: NOT MEASURED: {reason}", file=stream)
    for warning in report.warnings:
        print(f"warning: {warning}", file=stream)
    for reason in report.skipped:
        print(f"skipped: {reason}", file=stream)
    judged = [o for o in report.outcomes if judge(o) is not Verdict.OPEN]
    met = len(judged) - len(report.missed)
    print(f"{met} of {len(judged)} bars met, {len(report.missed)} missed", file=stream)


def write_json(report: Report, path: Path) -> None:
    document = {
        **report.facts,
        "outcomes": [_document(outcome) for outcome in report.outcomes],
        "failures": report.failures,
        "warnings": report.warnings,
        "skipped": report.skipped,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "row": outcome.row,
        "title": outcome.title,
        "unit": outcome.unit,
        "ours": list(outcome.ours),
        "theirs": list(outcome.theirs),
        "against": outcome.against,
        "ratio": ratio(outcome),
        "bar": outcome.bar.text(outcome.unit) if outcome.bar else None,
        "held": held_value(outcome),
        "verdict": judge(outcome).value,
        "cpu_s_per_million_ours": list(outcome.cpu_ours),
        "cpu_s_per_million_theirs": list(outcome.cpu_theirs),
        "note": outcome.note,
    }


def _cells(outcome: Outcome) -> tuple[str, ...]:
    found = ratio(outcome)
    theirs = f"{_number(outcome.theirs)} ({outcome.against})" if outcome.theirs else ""
    return (
        outcome.title,
        f"{_number(outcome.ours)} {outcome.unit}",
        theirs,
        "" if found is None else f"{found:.2f}x",
        outcome.bar.text(outcome.unit) if outcome.bar else "",
        _number(outcome.cpu_ours),
        _number(outcome.cpu_theirs),
        judge(outcome).value,
    )


def _number(samples: Sequence[float]) -> str:
    """The median, to three figures, without an exponent."""
    if not samples:
        return ""
    value = statistics.median(samples)
    whole_digits = len(str(abs(int(value))))
    return f"{value:,.{max(0, _FIGURES - whole_digits)}f}"


def _print_plain(lines: Sequence[tuple[str, ...]], stream: TextIO) -> None:
    widths = [max(len(cell) for cell in cells) for cells in zip(COLUMNS, *lines, strict=True)]
    for cells in (COLUMNS, *lines):
        padded = [cells[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        print("  ".join(padded).rstrip(), file=stream)


def _print_rich(lines: Sequence[tuple[str, ...]], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for index, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if index else "left", no_wrap=index > 0)
    for *cells, verdict in lines:
        style = {Verdict.MISSED.value: "bold red", Verdict.MET.value: "green"}.get(verdict, "dim")
        table.add_row(*cells, f"[{style}]{verdict}[/]")
    Console(file=stream).print(table)
