"""The chart of a run: how far each measure is from its bar."""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path
from typing import Any

from bench.judgement import Outcome, Verdict, held_value, judge
from bench.report import Report

__all__ = ["draw", "margin"]

FORMATS = ("svg", "png")
_COLOURS = {Verdict.MET: "#2a7f62", Verdict.MISSED: "#b3392f"}
_LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8}


def margin(outcome: Outcome) -> float | None:
    """How many times better than its bar a judged outcome is; 1 just meets it."""
    value = held_value(outcome)
    if outcome.bar is None or not value or value < 0:
        return None
    better = value / outcome.bar.limit
    return better if outcome.bar.goal == ">=" else 1 / better


def draw(report: Report, stem: Path) -> list[Path]:
    """Write the chart beside the numbers; nothing if matplotlib is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        report.skipped.append("the plot: matplotlib is not installed (requirements/bench.txt)")
        return []
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    margins = [(outcome, found) for outcome in report.outcomes if (found := margin(outcome))]
    if not margins:
        return []
    figure, axes = pyplot.subplots(figsize=(10, 0.42 * len(margins) + 1.6))
    for position, (outcome, found) in enumerate(reversed(margins)):
        axes.barh(position, found, color=_COLOURS[judge(outcome)], height=0.62)
        axes.text(found, position, f" {_label(outcome)}", va="center", fontsize=8, bbox=_LABEL_BOX)
    axes.set_yticks(range(len(margins)), [o.title for o, _ in reversed(margins)], fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(right=max(found for _, found in margins) * 6)
    axes.set_xlabel("times better than the bar (1 = just met)", fontsize=8)
    axes.set_title(f"Tidemill {report.facts['commit']}, {report.facts['date']}", fontsize=9)
    figure.tight_layout()
    paths = [stem.with_suffix(f".{kind}") for kind in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return paths


def _label(outcome: Outcome) -> str:
    ours = f"{statistics.median(outcome.ours):.3g}"
    if not outcome.theirs:
        return f"{ours} {outcome.unit}"
    return f"{ours} vs {statistics.median(outcome.theirs):.3g} {outcome.unit} ({outcome.against})"
