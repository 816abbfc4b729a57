"""The patterns of LIKE and `routes` as small automata, which never go back in the text (S37).

An automaton has up to 63 parts in a row. Bit n of its state says that the first n parts may have
matched what was read so far; one 64-bit number is the whole state, and each byte of a text, or word
of a routing key, costs one step. What may repeat (`%`, `#`) is not a part of its own: it lets the
state before it stay.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, final

from tidemill.core.limits import SELECTOR_PATTERN_PARTS_MAX

__all__ = ["LikeNet", "RouteNet", "check_like", "check_routes", "like_net", "route_net"]

_CONTINUES = range(0x80, 0xC0)
"""Bytes of UTF-8 that do not begin a character."""


@final
class LikeNet(NamedTuple):
    """The parts of a LIKE pattern, byte by byte; `_` is one character of any number of bytes."""

    accepts: array[int]
    """By byte: bit n is set if part n is, or may be, that byte."""
    stays: int
    """Bit n is set if any bytes may come after the first n parts: a `%`."""
    goes_on: int
    """Bit n is set if part n-1 is a `_`, whose further bytes may come."""
    parts: int


@final
class RouteNet(NamedTuple):
    """The words of a `routes` pattern."""

    words: tuple[bytes | None, ...]
    """None: any word."""
    stays: int
    """Bit n is set if any words may come after the first n: a `#`."""


def check_like(pattern: str, escape: str) -> None:
    """ValueError unless it is a pattern within the limits."""
    _check_parts(len(_like_parts(pattern, escape)[0]), "bytes beside %")


def check_routes(pattern: str) -> None:
    """ValueError unless it is a pattern within the limits."""
    _check_parts(len(route_net(pattern).words), "words")


def _check_parts(count: int, what: str) -> None:
    if count > SELECTOR_PATTERN_PARTS_MAX:
        raise ValueError(f"a pattern has {SELECTOR_PATTERN_PARTS_MAX} {what} at most")


def _like_parts(pattern: str, escape: str) -> tuple[list[int | None], int]:
    """The parts, None for `_`, and the places where a `%` is."""
    parts: list[int | None] = []
    stays = 0
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise ValueError(f"after {escape!a} comes %, _ or itself")
            parts += escaped.encode()
        elif character == "%":
            stays |= 1 << len(parts)
        elif character == "_":
            parts.append(None)
        else:
            parts += character.encode()
    return parts, stays


def like_net(pattern: str, escape: str = "") -> LikeNet:
    """The automaton of a checked pattern."""
    parts, stays = _like_parts(pattern, escape)
    accepts = array("Q", bytes(8 * 256))
    goes_on = 0
    for place, part in enumerate(parts):
        if part is not None:
            accepts[part] |= 1 << place
            continue
        goes_on |= 1 << (place + 1)
        for byte in range(256):
            if byte not in _CONTINUES:
                accepts[byte] |= 1 << place
    return LikeNet(accepts, stays, goes_on, len(parts))


def route_net(pattern: str) -> RouteNet:
    """The automaton of a pattern of words between dots."""
    words: list[bytes | None] = []
    stays = 0
    for word in pattern.split("."):
        if word == "#":
            stays |= 1 << len(words)
        else:
            words.append(None if word == "*" else word.encode())
    return RouteNet(tuple(words), stays)
