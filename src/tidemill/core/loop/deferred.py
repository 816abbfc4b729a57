"""A value that comes later, without an event loop.

An `asyncio.Future` schedules its callbacks through the loop: a task switch per parked request. A
`Deferred` calls its one listener at once, where it is resolved, so that an acknowledgement leaves
in the same turn in which its condition came true. It knows no loop, so pure code may use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

from tidemill.core.errors import invariant

__all__ = ["Deferred"]

T = TypeVar("T")


@final
class Deferred(Generic[T]):
    """Resolved exactly once, heard by exactly one listener, in either order."""

    __slots__ = ("_listener", "_value", "resolved")

    def __init__(self) -> None:
        self.resolved = False
        self._value: T | None = None
        self._listener: Callable[[T], None] | None = None

    def resolve(self, value: T) -> None:
        """Hand over the value; the listener runs now if there is one."""
        invariant(not self.resolved, "a deferred value was resolved twice")
        self.resolved = True
        listener = self._listener
        if listener is not None:
            self._listener = _heard
            listener(value)
        else:
            self._value = value

    def then(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the value, now or when it comes."""
        invariant(self._listener is None, "a deferred value has two listeners")
        self._listener = _heard if self.resolved else listener
        if self.resolved:
            listener(self._value)  # type: ignore[arg-type]  # resolved: the value is a T


def _heard(_value: object) -> None:
    """Stands for a listener that was called: most hold whoever holds us, a cycle for each answer.

    Without it nothing is left for the garbage collector.
    """
