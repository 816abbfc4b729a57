"""What all generated messages and their parts have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

from tidemill.wire.primitives import Reader, Writer

__all__ = ["UNSET", "Message", "not_null", "unsupported", "unwritable"]

UNSET: Any = ()
"""Means "a new empty list or struct" in argument lists, where None may mean null."""

_T = TypeVar("_T")
_REPR_BYTES_MAX = 32


class Message:
    """A wire struct: its `__slots__` are its fields, equal if all fields are.

    One class serves all versions. `read` leaves fields that a version does not have at their
    defaults; `write` drops them, or raises `ValueError` where dropping would change the meaning.
    """

    __slots__: tuple[str, ...] = ()
    __hash__ = None  # type: ignore[assignment]  # fields can change, so instances have no hash

    version_min: ClassVar[int]
    version_max: ClassVar[int]

    @classmethod
    def read(cls, r: Reader, version: int) -> Self:
        raise NotImplementedError

    def write(self, w: Writer, version: int) -> None:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = (f"{name}={_shown(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__name__}({', '.join(fields)})"


def unsupported(message: str, version: int) -> ValueError:
    return ValueError(f"{message} has no version {version}")


def unwritable(field: str, version: int) -> ValueError:
    return ValueError(f"{field} is set, but version {version} cannot carry it")


def not_null(field: str, value: _T | None) -> _T:
    if value is None:
        raise ValueError(f"{field} is null, but this version cannot carry that")
    return value


def _shown(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > _REPR_BYTES_MAX:
        return f"<{len(value)} bytes>"
    return repr(value)
