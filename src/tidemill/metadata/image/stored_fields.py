"""Values of stored nodes: JSON objects, packed when they are long, checked when read. Pure.

Other programs can write to the store, so nothing that comes from there is trusted: size, shape and
ranges are checked field by field. A value that fails is a `BadNode`; its reader raises an alarm and
goes on without it (S46).

A disk can change a bit, and neither SQLite nor JSON would notice another digit in a topic's id, for
which brokers give up the logs of the topic. So the last field of a value is a checksum of all that
comes before it. Values without one are of an earlier version.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Iterable
from typing import Any, final
from uuid import UUID

from tidemill.core.config.keys import INT32_MAX
from tidemill.core.errors import TidemillError
from tidemill.core.limits import (
    NODE_INFLATED_BYTES_MAX,
    NODE_PACKED_FROM_BYTES,
    NODE_STORED_BYTES_MAX,
)

__all__ = ["BadNode", "Fields", "checked_replicas", "dump", "load", "pack", "text_of"]

_FORMAT = 1
_ZLIB_LEVEL = 1
"""A fifth larger than the usual level, in a third of the time: a page is packed at every change."""
_SUM = re.compile(rb',"sum":"([0-9a-f]{8})"}\Z')
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Perhaps one half of a character, perhaps one of two that belong together."""
_SUM_BYTES = len(b',"sum":"00000000"}')


class BadNode(TidemillError):
    """A stored node that Tidemill cannot have written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path!a}: {reason}")


def text_of(value: dict[str, Any]) -> bytes:
    """The value before it is packed."""
    text = json.dumps({"v": _FORMAT, **value}, separators=(",", ":")).encode()[:-1]
    return b'%b,"sum":"%08x"}' % (text, zlib.crc32(text))


def dump(value: dict[str, Any]) -> bytes:
    """The value as it is stored."""
    return pack(text_of(value))


def pack(text: bytes) -> bytes:
    return text if len(text) <= NODE_PACKED_FROM_BYTES else zlib.compress(text, _ZLIB_LEVEL)


def load(path: str, stored: bytes, formats: Collection[int] = (_FORMAT,)) -> Fields:
    """The fields of a stored value in one of these formats; BadNode if it is not one of ours."""
    text = _inflated(path, stored)
    found = _SUM.search(text, max(0, len(text) - _SUM_BYTES))
    if found is not None and zlib.crc32(text[: found.start()]) != int(found[1], 16):
        raise BadNode(path, "damaged: its checksum is another")
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise BadNode(path, "not JSON") from None
    if not isinstance(value, dict):
        raise BadNode(path, "not an object")
    if _HALF.search(text) and not _is_text(value):
        raise BadNode(path, "has half of a character")
    if value.get("v") not in formats:
        raise BadNode(path, "a format that this version does not know")
    return Fields(path, value)


def _is_text(value: object) -> bool:
    """Whether everything in it can be sent: JSON can name halves of characters, UTF-8 has none."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _inflated(path: str, stored: bytes) -> bytes:
    if len(stored) > NODE_STORED_BYTES_MAX:
        raise BadNode(path, f"more than {NODE_STORED_BYTES_MAX} bytes")
    if stored[:1] == b"{":
        return stored
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(stored, NODE_INFLATED_BYTES_MAX)
    except zlib.error:
        raise BadNode(path, "neither JSON nor packed") from None
    if not unpacker.eof or unpacker.unused_data:
        raise BadNode(path, f"cut off, or more than {NODE_INFLATED_BYTES_MAX} bytes")
    return text


@final
class Fields:
    """The fields of an object; each getter checks its field."""

    __slots__ = ("_path", "_value")

    def __init__(self, path: str, value: object) -> None:
        if not isinstance(value, dict):
            raise BadNode(path, "has something that is not an object")
        self._path = path
        self._value: dict[str, Any] = value

    def bad(self, reason: str) -> BadNode:
        return BadNode(self._path, reason)

    def has(self, name: str) -> bool:
        return name in self._value

    def number(self, name: str, minimum: int, maximum: int) -> int:
        found = self._value.get(name)
        if type(found) is not int or not minimum <= found <= maximum:
            raise self.bad(f"{name} is not a number in range")
        return found

    def flag(self, name: str) -> bool:
        """False if there is none."""
        found = self._value.get(name, False)
        if not isinstance(found, bool):
            raise self.bad(f"{name} is neither true nor false")
        return found

    def uuid(self, name: str) -> UUID:
        try:
            return UUID(self.text(name))
        except ValueError:
            raise self.bad(f"{name} is not an id") from None

    def text(self, name: str) -> str:
        found = self._value.get(name)
        if not isinstance(found, str):
            raise self.bad(f"{name} is not a text")
        return found

    def texts(self, name: str) -> dict[str, str]:
        found = self._value.get(name)
        if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
            raise self.bad(f"{name} is not a map of texts")
        return found

    def named_numbers(self, name: str, minimum: int, maximum: int) -> dict[str, int]:
        """A map of numbers."""
        found = self.object(name)
        return {key: found.number(key, minimum, maximum) for key in found.names()}

    def names(self) -> Iterable[str]:
        """Of the fields."""
        return self._value.keys()

    def all_texts(self) -> dict[str, str]:
        """The object itself, if it is a map of texts."""
        if not all(isinstance(one, str) for one in self._value.values()):
            raise self.bad("not a map of texts")
        return self._value

    def numbers(self, name: str, maximum: int) -> list[int]:
        found = self.items(name)
        if not all(type(one) is int and 0 <= one <= maximum for one in found):
            raise self.bad(f"{name} has something that is not a number in range")
        return found

    def brokers(self, name: str) -> tuple[int, ...]:
        return tuple(self.numbers(name, INT32_MAX))

    def replicas(self, name: str) -> tuple[int, ...]:
        return checked_replicas(self, name, self.brokers(name))

    def items(self, name: str) -> list[Any]:
        found = self._value.get(name)
        if not isinstance(found, list):
            raise self.bad(f"{name} is not a list")
        return found

    def object(self, name: str) -> Fields:
        return Fields(self._path, self._value.get(name))

    def objects(self, name: str) -> list[Fields]:
        return [Fields(self._path, one) for one in self.items(name)]

    def named(self, name: str) -> dict[str, Fields]:
        """A map of objects."""
        found = self._value.get(name)
        if not isinstance(found, dict):
            raise self.bad(f"{name} is not a map")
        return {key: Fields(self._path, one) for key, one in found.items()}


def checked_replicas(fields: Fields, name: str, replicas: tuple[int, ...]) -> tuple[int, ...]:
    if not replicas or len(set(replicas)) != len(replicas):
        raise fields.bad(f"{name} has no or repeated brokers")
    return replicas
