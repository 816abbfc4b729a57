"""Visits every state of a model, and names the steps that lead to a broken promise."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


class Broken(Exception):
    """A promise was broken; the steps that lead there."""


def visit_all(
    first: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    fault: Callable[[S], str | None],
    *,
    states_max: int,
) -> int:
    """Visit every state, breadth first; how many there are. Raises Broken.

    `steps` gives what may happen next, by name; `fault` says what is wrong in a state.
    """
    came_from: dict[S, tuple[S, str] | None] = {first: None}
    frontier = [first]
    while frontier:
        following: list[S] = []
        for state in frontier:
            for name, after in steps(state):
                if after in came_from:
                    continue
                came_from[after] = (state, name)
                broken = fault(after)
                if broken:
                    raise Broken("; ".join([*_path(came_from, after), broken]))
                following.append(after)
        frontier = following
        assert len(came_from) <= states_max, "the exploration does not end"
    return len(came_from)


def _path(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    steps: list[str] = []
    while (before := came_from[state]) is not None:
        state, name = before
        steps.append(name)
    return steps[::-1]
