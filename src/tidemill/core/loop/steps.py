"""Long work that is pure: a generator that yields wherever a slice of the event loop may end.

`pacing.py` runs it in slices; who is not on the loop runs it to its end.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

__all__ = ["Steps", "finished"]

_T = TypeVar("_T")

Steps: TypeAlias = Generator[None, None, _T]
"""Work that returns a value in the end."""


def finished(steps: Steps[_T]) -> _T:
    """The outcome of all the work, done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # what the generator returns
