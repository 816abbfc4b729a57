"""A value that comes later, without an event loop.

An `asyncio.Future` schedules its callbacks through the loop: a task switch per parked request. A
`Deferred` calls its one listener at once, where it is resolved, so that an acknowledgement leaves
in the same turn in which its condition came true. It knows no loop, so pure code may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, final

from tidemill.core.errors import ErrorCode, invariant

__all__ = ["Deferred", "join_deferred"]

T = TypeVar("T")
J = TypeVar("J")


@final
class Deferred(Generic[T]):
    """Resolved exactly once, heard by exactly one listener, in either order."""

    __slots__ = ("_listener", "_refusal", "_value", "resolved")

    def __init__(self, refusal: Callable[[ErrorCode], T] | None = None) -> None:
        """`refusal` makes the value that says "refused with this code", for `refuse`."""
        self.resolved = False
        self._refusal = refusal
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

    def refuse(self, code: ErrorCode) -> None:
        """Resolve it with the refusal of its API."""
        self.resolve(self.refusal(code))

    def refusal(self, code: ErrorCode) -> T:
        """The value that `refuse` would resolve it with."""
        refusal = self._refusal
        assert refusal is not None
        return refusal(code)

    def then(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the value, now or when it comes."""
        invariant(self._listener is None, "a deferred value has two listeners")
        self._listener = _heard if self.resolved else listener
        if self.resolved:
            listener(self._value)  # type: ignore[arg-type]  # resolved: the value is a T


def _heard(_value: object) -> None:
    """Takes the place of a listener that was called.

    Most listeners hold the object that holds the deferred value. Dropping the listener breaks that
    cycle, so no answer is left to the garbage collector.
    """


def join_deferred(
    values: Iterable[T | Deferred[T]], combine: Callable[[list[T]], J]
) -> J | Deferred[J]:
    """What `combine` makes of all values: now if all are there, else with the last one."""
    join = _Join(combine)
    for value in values:
        join.add(value)
    return join.close()


@final
class _Join(Generic[T, J]):
    """The values that have come, and how many have not."""

    __slots__ = ("_combine", "_deferred", "_missing", "_values")

    def __init__(self, combine: Callable[[list[T]], J]) -> None:
        self._combine = combine
        self._values: list[Any] = []
        self._missing = 1
        """One more than there are, until all are known."""
        self._deferred: Deferred[J] = Deferred()

    def add(self, value: T | Deferred[T]) -> None:
        index = len(self._values)
        self._values.append(value)
        if isinstance(value, Deferred):
            self._missing += 1
            value.then(lambda came: self._came(index, came))

    def close(self) -> J | Deferred[J]:
        self._missing -= 1
        return self._combine(self._values) if self._missing == 0 else self._deferred

    def _came(self, index: int, value: T) -> None:
        self._values[index] = value
        self._missing -= 1
        if self._missing == 0:
            self._deferred.resolve(self._combine(self._values))
