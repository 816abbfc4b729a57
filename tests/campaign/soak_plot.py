"""The chart of a soak: memory of each broker and latency of acknowledgements over time."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tests.campaign.soak_summary import SoakSummary

__all__ = ["draw"]


def draw(summary: SoakSummary, path: Path) -> bool:
    """Write the chart; False if matplotlib is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        return False
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    minutes = [one["seconds"] / 60 for one in summary.samples]
    figure, (memory, latency) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 6))
    for number in range(len(summary.brokers)):
        found = [one["brokers"][number]["rss_anon_mb"] for one in summary.samples]
        memory.plot(minutes, found, label=f"broker {number}", linewidth=1)
    memory.set_ylabel("anonymous memory, MB", fontsize=8)
    memory.set_ylim(bottom=0)
    memory.legend(fontsize=8)
    for key in ("ack_ms_p50", "ack_ms_p99", "ack_ms_longest"):
        found = [one[key] for one in summary.samples]
        label = key.removeprefix("ack_ms_")
        latency.plot(minutes, [float("nan") if one is None else one for one in found], label=label)
    latency.set_yscale("log")
    latency.set_ylabel("acknowledgement, ms", fontsize=8)
    latency.set_xlabel("minutes", fontsize=8)
    latency.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
