"""Groups statements that differ by version into as few `if` ladders as possible.

Each step of a method gives its statements for one version. Neighbouring versions with the same
statements share a branch, and neighbouring steps that change at the same versions share a ladder.
So the generated code asks "is this flexible?" once and not once per field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from tools.schema_gen.model import Versions

__all__ = ["Lines", "Step", "ladder_lines"]

Lines: TypeAlias = tuple[str, ...]
Step: TypeAlias = Callable[[int], Lines]
_LINE_CHARS_MAX = 88
"""The generated statements are indented by two levels."""
_Ladder: TypeAlias = list[tuple[int, Lines]]
"""(first version, statements), rising."""


def ladder_lines(steps: Iterable[Step], versions: Versions) -> list[str]:
    ladders: list[_Ladder] = []
    for step in steps:
        ladder = _ladder(step, versions)
        if ladders and _starts(ladders[-1]) == _starts(ladder):
            both = zip(ladders[-1], ladder, strict=True)
            ladders[-1] = [(low, before + after) for (low, before), (_, after) in both]
        elif any(lines for _, lines in ladder):
            ladders.append(ladder)
    return [line for ladder in ladders for line in _emit(ladder)]


def _ladder(step: Step, versions: Versions) -> _Ladder:
    ladder: _Ladder = []
    for version in versions:
        lines = step(version)
        if not ladder or ladder[-1][1] != lines:
            ladder.append((version, lines))
    return ladder


def _starts(ladder: _Ladder) -> list[int]:
    return [low for low, _ in ladder]


def _emit(ladder: _Ladder) -> list[str]:
    if len(ladder) == 1:
        return list(ladder[0][1])
    if len(ladder) == 2 and not ladder[1][1]:
        return [f"if version < {ladder[1][0]}:", *_indented(ladder[0][1])]
    if (choice := _try_choice(ladder)) is not None:
        return [choice]
    lines: list[str] = []
    for low, body in reversed(ladder[1:]):
        lines.append(f"{'elif' if lines else 'if'} version >= {low}:")
        lines += _indented(body or ("pass",))
    if ladder[0][1]:
        lines += ["else:", *_indented(ladder[0][1])]
    return lines


def _try_choice(ladder: _Ladder) -> str | None:
    """Two versions of one assignment as one line, or None if they cannot be combined."""
    if len(ladder) != 2 or any(len(lines) != 1 for _, lines in ladder):
        return None
    (_, (before,)), (low, (after,)) = ladder
    target, assigned, value = after.partition(" = ")
    other_target, _, other = before.partition(" = ")
    if not assigned or target != other_target or " if " in value + other:
        return None
    line = f"{target} = {value} if version >= {low} else {other}"
    return line if len(line) <= _LINE_CHARS_MAX else None


def _indented(lines: Lines) -> list[str]:
    return [f"    {line}" for line in lines]
