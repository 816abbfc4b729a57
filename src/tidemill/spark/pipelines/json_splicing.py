"""Adds a member to a JSON object without changing a byte of its other members. Pure.

The object is parsed to check it and to find the field that is looked up, but it is never written
again: a parser that reads numbers as floats, or text as anything but UTF-8, would change them. The
new member is put behind the last one. What is not understood whole is refused with a reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, final

__all__ = ["SplitObject", "Unsplittable", "member_prefix", "split_object"]

_SPACE: Final = " \t\n\r"


@final
class Unsplittable(ValueError):
    """The value is not one JSON object; the text says why."""


@final
@dataclass(frozen=True, slots=True)
class SplitObject:
    """A JSON object, cut where the new member goes, without the member of that name."""

    head: bytes
    tail: bytes
    has_members: bool
    """Whether a comma is needed before the new member."""
    found: str | None
    """The field that was looked up, as text; None if it is missing, null or not a single value."""


@final
@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    value: object
    start: int
    end: int


def member_prefix(name: str) -> str:
    """The name of a member and its colon, as JSON."""
    return f"{json.dumps(name, ensure_ascii=False)}:"


def split_object(value: bytes | None, path: tuple[str, ...], name: str) -> SplitObject:
    """Cut the object for a member `name`, and look up the field at `path`. Raises Unsplittable."""
    if value is None or not value.strip():
        raise Unsplittable("the record is empty")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Unsplittable("not UTF-8") from None
    try:
        opening, members = _members(text)
    except RecursionError:
        raise Unsplittable("nested too deep") from None
    head, tail, has_members = _cut(text, opening, members, name)
    found = _found({member.name: member.value for member in members}, path)
    return SplitObject(head.encode(), tail.encode(), has_members, found)


# --- parsing -------------------------------------------------------------------------------------


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        _refuse_twice(next(name for name in names if names.count(name) > 1))
    return found


def _refuse_twice(name: str) -> None:
    shown = ascii(name[:60])
    raise Unsplittable(f"the field {shown} is there twice")


def _refuse_constant(word: str) -> object:
    raise Unsplittable(f"not JSON: {word}")


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=str, parse_float=str, parse_constant=_refuse_constant
)
"""Numbers stay text: converting them costs time, and a number of 5,000 digits is refused."""


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _members(text: str) -> tuple[int, list[_Member]]:
    """The position of the opening brace, and all members of the only object in the text."""
    opening = _after_space(text, 0)
    try:
        if text[opening] != "{":
            _decoder.decode(text)
            raise Unsplittable("not a JSON object")
        members, end = _object(text, opening)
    except json.JSONDecodeError:
        raise Unsplittable("not JSON") from None
    if _after_space(text, end) < len(text):
        raise Unsplittable("not JSON: there is more behind the object")
    names = [member.name for member in members]
    if len(set(names)) < len(names):
        _refuse_twice(next(name for name in names if names.count(name) > 1))
    return opening, members


def _object(text: str, opening: int) -> tuple[list[_Member], int]:
    """The members, and the position behind the closing brace."""
    members: list[_Member] = []
    at = _after_space(text, opening + 1)
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        member = _member(text, at)
        members.append(member)
        at = _after_space(text, member.end)
        if text[at : at + 1] == "}":
            return members, at + 1
        _expect(text, at, ",")
        at = _after_space(text, at + 1)


def _member(text: str, start: int) -> _Member:
    _expect(text, start, '"')
    name, at = _decoder.raw_decode(text, start)
    at = _after_space(text, at)
    _expect(text, at, ":")
    value, end = _decoder.raw_decode(text, _after_space(text, at + 1))
    return _Member(name, value, start, end)


def _expect(text: str, at: int, wanted: str) -> None:
    if text[at : at + 1] != wanted:
        raise json.JSONDecodeError(f"expected {wanted}", text[:0], 0)


# --- cutting and looking up ----------------------------------------------------------------------


def _cut(text: str, opening: int, members: list[_Member], name: str) -> tuple[str, str, bool]:
    """The text before and behind the new member, without the old member of that name."""
    kept = [member for member in members if member.name != name]
    tail = text[members[-1].end :] if members else text[opening + 1 :]
    if not kept:
        return text[: opening + 1], tail, False
    old = next((index for index, member in enumerate(members) if member.name == name), None)
    if old is None:
        return text[: kept[-1].end], tail, True
    if old == 0:
        head = text[: members[0].start] + text[kept[0].start : kept[-1].end]
    else:
        head = text[: members[old - 1].end] + text[members[old].end : kept[-1].end]
    return head, tail, True


def _found(members: object, path: tuple[str, ...]) -> str | None:
    for part in path:
        if not isinstance(members, dict):
            return None
        members = members.get(part)
    if isinstance(members, bool):
        return "true" if members else "false"
    if not isinstance(members, str):
        return None
    # A lone surrogate is legal in JSON, but no text: no row of a table can have it.
    return None if any("\ud800" <= char <= "\udfff" for char in members) else members
