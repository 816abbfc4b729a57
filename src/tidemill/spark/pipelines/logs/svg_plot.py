"""Small plots of values over time as SVG text, without scripts, fonts or external addresses.

Colours are CSS variables of the page, so plots follow its light and dark themes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from math import floor, log10
from typing import Final, final

__all__ = ["Series", "time_plot"]

_WIDTH: Final = 760
_HEIGHT: Final = 220
_LEFT: Final = 72
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 26
_TICKS_X: Final = 6
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_SMALLEST_TOP: Final = 1e-9


@final
@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot; None is a gap."""

    name: str
    colour: str
    """A CSS variable of the page, such as `--c1`."""
    values: Sequence[float | None]
    filled: bool = False


def time_plot(title: str, times: Sequence[datetime], series: Sequence[Series], unit: str) -> str:
    """An `svg` element. `times` are in order, one for each value of a series."""
    top = _nice_top(max((v for s in series for v in s.values if v is not None), default=1.0))
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(top, unit),
        *_time_labels(times),
        *(part for one in series for part in _drawn(one, times, top)),
        "</svg>",
    ]
    return "\n".join(parts)


def _nice_top(largest: float) -> float:
    """The next round number, so that the labels of the grid are round too."""
    if largest < _SMALLEST_TOP:
        return _SMALLEST_TOP if largest > 0 else 1.0
    power = 10.0 ** floor(log10(largest))
    return next(step * power for step in _STEPS if step * power >= largest * 0.999)


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _x(time: datetime, times: Sequence[datetime]) -> float:
    span_s = (times[-1] - times[0]).total_seconds()
    share = (time - times[0]).total_seconds() / span_s if span_s else 0.5
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share


def _grid(top: float, unit: str) -> list[str]:
    parts = []
    for quarter in range(5):
        value = top * quarter / 4
        y = _y(value, top)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        label = escape(f"{value:,.4g}".replace("e+", "e") if top < 10_000 else f"{value:,.0f}")
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{label}{escape(unit)}</text>"
        )
    return parts


def _time_labels(times: Sequence[datetime]) -> list[str]:
    if not times:
        return []
    last = len(times) - 1
    picked = sorted({round(last * n / _TICKS_X) for n in range(_TICKS_X + 1)})
    return [
        f'<text class="tick" x="{_x(times[n], times):.1f}" y="{_HEIGHT - 8}" '
        f'text-anchor="{_anchor(n, last)}">{times[n]:%H:%M}</text>'
        for n in picked
    ]


def _anchor(index: int, last: int) -> str:
    return "end" if index == last and last else "middle"


def _drawn(series: Series, times: Sequence[datetime], top: float) -> list[str]:
    parts = []
    for run in _runs(series.values):
        points = [(_x(times[n], times), _y(series.values[n] or 0.0, top)) for n in run]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = escape(series.colour)
        if series.filled:
            base = _y(0.0, top)
            area = f"{points[0][0]:.1f},{base:.1f} {text} {points[-1][0]:.1f},{base:.1f}"
            parts.append(f'<polygon style="fill:var({colour});opacity:.18" points="{area}"/>')
        if len(points) == 1:
            x, y = points[0]
            parts.append(f'<circle style="fill:var({colour})" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        parts.append(f'<polyline class="line" style="stroke:var({colour})" points="{text}"/>')
    return parts


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """Runs of consecutive indexes that have a value."""
    runs: list[list[int]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(index)
    return [run for run in runs if run]
