"""Draws boxes on a grid and numbered arrows between them, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import hypot

__all__ = ["Arrow", "Box", "draw"]

BOX_WIDTH, BOX_HEIGHT = 150, 44
COLUMN_WIDTH, ROW_HEIGHT = 260, 150
MARGIN = 40
BEND = 34
"""How far an arrow bends to its left: the way back bends to the other side."""
CHARACTER_WIDTH = 7

HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" font-family="sans-serif" font-size="13" role="img">
<title>{title}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" \
orient="auto"><path d="M0 0L10 5L0 10z" fill="#33658a"/></marker></defs>
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A state at a place of the grid."""

    name: str
    column: int
    row: int

    @property
    def center(self) -> tuple[float, float]:
        return (
            MARGIN + BOX_WIDTH / 2 + self.column * COLUMN_WIDTH,
            MARGIN + BOX_HEIGHT / 2 + self.row * ROW_HEIGHT,
        )


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one box to another."""

    source: str
    target: str
    label: str


def draw(title: str, boxes: Sequence[Box], arrows: Sequence[Arrow]) -> str:
    """The picture; arrows go between different boxes."""
    by_name = {box.name: box for box in boxes}
    width = 2 * MARGIN + BOX_WIDTH + COLUMN_WIDTH * max(box.column for box in boxes)
    height = 2 * MARGIN + BOX_HEIGHT + ROW_HEIGHT * max(box.row for box in boxes)
    parts = [HEAD.format(width=width, height=height, title=escape(title))]
    parts += [_arrow(by_name[one.source], by_name[one.target], one.label) for one in arrows]
    parts += [_box(box) for box in boxes]
    return "".join([*parts, "</svg>\n"])


def _box(box: Box) -> str:
    x, y = box.center
    left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="9" '
        f'fill="#e8f1f7" stroke="#33658a" stroke-width="1.5"/>\n'
        f'<text x="{x:g}" y="{y + 5:g}" text-anchor="middle">{escape(box.name)}</text>\n'
    )


def _arrow(source: Box, target: Box, label: str) -> str:
    """A curve from edge to edge, with its label in the middle."""
    (x1, y1), (x2, y2) = source.center, target.center
    length = hypot(x2 - x1, y2 - y1)
    bend = BEND * max(1, abs(target.column - source.column), abs(target.row - source.row))
    middle_x = (x1 + x2) / 2 + bend * (y2 - y1) / length
    middle_y = (y1 + y2) / 2 - bend * (x2 - x1) / length
    start = _edge(source, (middle_x, middle_y))
    end = _edge(target, (middle_x, middle_y))
    label_x = (start[0] + 2 * middle_x + end[0]) / 4
    label_y = (start[1] + 2 * middle_y + end[1]) / 4
    label_width = 10 + CHARACTER_WIDTH * len(label)
    return (
        f'<path d="M{start[0]:.1f} {start[1]:.1f}Q{middle_x:.1f} {middle_y:.1f} '
        f'{end[0]:.1f} {end[1]:.1f}" fill="none" stroke="#33658a" marker-end="url(#tip)"/>\n'
        f'<rect x="{label_x - label_width / 2:.1f}" y="{label_y - 10:.1f}" '
        f'width="{label_width}" height="20" rx="10" fill="#ffffff" stroke="#b8cdda"/>\n'
        f'<text x="{label_x:.1f}" y="{label_y + 4.5:.1f}" text-anchor="middle">{label}</text>\n'
    )


def _edge(box: Box, towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the center of a box to a point leaves the box."""
    x, y = box.center
    dx, dy = towards[0] - x, towards[1] - y
    scale = min(
        BOX_WIDTH / 2 / abs(dx) if dx else float("inf"),
        BOX_HEIGHT / 2 / abs(dy) if dy else float("inf"),
    )
    return x + dx * scale, y + dy * scale
