"""The report as one self-contained HTML page, with its styles and plots inside.

Paths in a log are text that strangers chose. Every text from the data goes through `escape`. As a
second line of defence, the page's content security policy forbids scripts and external addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

from tidemill.spark.pipelines.logs.minutes import Minute
from tidemill.spark.pipelines.logs.svg_plot import Series, time_plot

__all__ = ["page", "size_text", "top_paths", "write_page"]

_PATHS_SHOWN: Final = 15
_PATH_CHARS_MAX: Final = 120

_STYLE: Final = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1c2530;--soft:#667085;--rule:#e4e7ec;
--c1:#2563eb;--c2:#dc2626;--c3:#d97706;--c4:#7c3aed;--c5:#059669}
@media(prefers-color-scheme:dark){:root{--bg:#0f141b;--card:#18202b;--ink:#e6eaf0;--soft:#93a0b3;
--rule:#2a3442;--c1:#60a5fa;--c2:#f87171;--c3:#fbbf24;--c4:#a78bfa;--c5:#34d399}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}main{max-width:1080px;margin:0 auto;padding:32px 20px 48px}
h1{font-size:26px;margin:0}h2{font-size:15px;margin:0 0 8px}
p.sub{color:var(--soft);margin:4px 0 24px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}
.card,section{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:14px 16px}
.card b{display:block;font-size:24px;line-height:1.2;font-variant-numeric:tabular-nums}
.card span{color:var(--soft);font-size:13px}section{margin-top:14px}
svg{display:block;width:100%;height:auto}.grid{stroke:var(--rule)}
.tick{fill:var(--soft);font-size:11px}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.key{display:inline-block;margin-right:16px;color:var(--soft);font-size:13px}
.key i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:5px 8px;border-top:1px solid var(--rule);text-align:right}th{color:var(--soft);
font-weight:500;border:0}td:first-child,th:first-child{text-align:left;overflow-wrap:anywhere}
.bar{height:6px;border-radius:3px;background:var(--c1);min-width:2px}td.share{width:28%}
.wide{overflow-x:auto}footer{color:var(--soft);font-size:13px;margin-top:20px}
"""


def write_page(path: Path, minutes: Sequence[Minute], *, title: str) -> None:
    """Replace the report; a reader sees the old one or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(page(minutes, title=title), encoding="utf-8")
    fresh.replace(path)


def page(minutes: Sequence[Minute], *, title: str) -> str:
    """The whole document. `minutes` is in order and not empty."""
    first, last = minutes[0].start, minutes[-1].start
    span = f"{first:%d %B %Y, %H:%M} to {last:%H:%M} UTC, {len(minutes)} windows"
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\"/>",
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
        f'<h1>{escape(title)}</h1><p class="sub">{escape(span)}</p>',
        _cards(minutes),
        *_plots(minutes),
        _paths_section(minutes),
        _minutes_section(minutes),
        "<footer>Open windows are not included. Percentiles are those of each window; counts of "
        "paths are sums over the top paths of each window.</footer></main></body></html>\n",
    ]
    return "\n".join(parts)


def _cards(minutes: Sequence[Minute]) -> str:
    requests = sum(minute.requests for minute in minutes)
    errors = sum(minute.errors for minute in minutes)
    refused = sum(minute.status.get("4xx", 0) for minute in minutes)
    size = sum(minute.size_bytes for minute in minutes)
    worst = [m.latency_p95_ms for m in minutes if m.latency_p95_ms is not None]
    cards = [
        (f"{requests:,}", "requests"),
        (f"{requests / len(minutes):,.0f}", "requests in an average window"),
        (f"{100 * errors / max(1, requests):.2f} %", "answered with 5xx"),
        (f"{100 * refused / max(1, requests):.2f} %", "answered with 4xx"),
        (size_text(size), "sent"),
        (f"{median(worst):,.0f} ms" if worst else "none", "p95 latency of a typical window"),
    ]
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label in cards
    )
    return f'<div class="cards">{inner}</div>'


def _plots(minutes: Sequence[Minute]) -> list[str]:
    requests = [
        Series("requests", "--c1", [float(m.requests) for m in minutes], filled=True),
    ]
    errors = [
        Series("5xx", "--c2", [100 * m.error_share for m in minutes], filled=True),
        Series("4xx", "--c3", [_percent(m, "4xx") for m in minutes]),
    ]
    latency = [
        Series("p50", "--c5", [m.latency_p50_ms for m in minutes]),
        Series("p95", "--c1", [m.latency_p95_ms for m in minutes]),
        Series("p99", "--c4", [m.latency_p99_ms for m in minutes]),
    ]
    plots = [
        _plot("Requests per window", minutes, requests, ""),
        _plot("Share of answers that are errors", minutes, errors, " %"),
    ]
    if any(minute.latency_p50_ms is not None for minute in minutes):
        plots.append(_plot("Latency", minutes, latency, " ms"))
    return plots


def _percent(minute: Minute, status: str) -> float:
    return 100 * minute.status.get(status, 0) / max(1, minute.requests)


def _plot(title: str, minutes: Sequence[Minute], series: Sequence[Series], unit: str) -> str:
    keys = "".join(
        f'<span class="key"><i style="background:var({one.colour})"></i>{escape(one.name)}</span>'
        for one in series
    )
    drawn = time_plot(title, [minute.start for minute in minutes], series, unit)
    return f"<section><h2>{escape(title)}</h2>{drawn}{keys}</section>"


def top_paths(minutes: Iterable[Minute], count: int) -> list[tuple[str, int]]:
    """The paths with the most requests, summed over the top paths of each window."""
    total: Counter[str] = Counter()
    for minute in minutes:
        total.update(dict(minute.top_paths))
    return sorted(total.items(), key=lambda item: (-item[1], item[0]))[:count]


def _paths_section(minutes: Sequence[Minute]) -> str:
    found = top_paths(minutes, _PATHS_SHOWN)
    most = max((count for _, count in found), default=1)
    rows = "".join(
        f"<tr><td><code>{escape(path[:_PATH_CHARS_MAX])}</code></td><td>{count:,}</td>"
        f'<td class="share"><div class="bar" style="width:{100 * count / most:.1f}%"></div></td>'
        "</tr>"
        for path, count in found
    )
    head = "<tr><th>path</th><th>requests</th><th></th></tr>"
    return f"<section><h2>Top paths</h2><table>{head}{rows}</table></section>"


def _minutes_section(minutes: Sequence[Minute]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in ("window", "requests", "2xx", "3xx", "4xx", "5xx", "sent", "p50", "p95", "p99")
    )
    rows = "".join(_minute_row(minute) for minute in reversed(minutes))
    return (
        f'<section class="wide"><h2>Windows, newest first</h2><table><tr>{head}</tr>{rows}</table>'
        "</section>"
    )


def _minute_row(minute: Minute) -> str:
    latencies = (minute.latency_p50_ms, minute.latency_p95_ms, minute.latency_p99_ms)
    cells = [
        f"{minute.start:%H:%M}",
        f"{minute.requests:,}",
        *(f"{minute.status.get(f'{n}xx', 0):,}" for n in (2, 3, 4, 5)),
        size_text(minute.size_bytes),
        *("" if value is None else f"{value:,.0f} ms" for value in latencies),
    ]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def size_text(size_bytes: float) -> str:
    """A size in decimal units, such as `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1_000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1_000
    return f"{size_bytes:,.1f} TB"
