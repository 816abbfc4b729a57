"""What a selector says of a record, computed from its tree in the plainest way.

Nothing of the compiled program is used here: patterns are Python's regular expressions, unknown is
None, and every operator is a closure.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.delivery.filter import tree
from tidemill.delivery.filter.tree import FieldKind, Order, ValueKind

Truth = bool | None
Value = bytes | int | float | bool | None
DECIMAL = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else None,
}


@dataclass
class Facts:
    """What a selector can see of a record."""

    key: bytes | None = None
    timestamp: int = 0
    partition: int = 0
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)

    def header(self, name: bytes) -> bytes | None:
        found = [value for other, value in self.headers if other.encode() == name]
        return found[-1] if found else None

    def has(self, name: bytes) -> bool:
        return any(other.encode() == name for other, _ in self.headers)


def condition(node: tree.Condition) -> Callable[[Facts], Truth]:
    match node:
        case tree.Constant(value):
            return lambda _: value
        case tree.Not(inner):
            held = condition(inner)
            return lambda facts: None if (found := held(facts)) is None else not found
        case tree.And(left, right):
            both = condition(left), condition(right)
            return lambda facts: _all(one(facts) for one in both)
        case tree.Or(left, right):
            either = condition(left), condition(right)
            return lambda facts: _any(one(facts) for one in either)
        case _:
            return _test(node)


def _test(node: tree.Condition) -> Callable[[Facts], Truth]:
    """A condition that has no other ones in it."""
    match node:
        case tree.Comparison(accepted, left, right, kind):
            first, second = value_of(left, kind), value_of(right, kind)
            return lambda facts: _compared(first(facts), second(facts), accepted)
        case tree.IsNull(one):
            found = value_of(one, ValueKind.TEXT)
            return lambda facts: found(facts) is None
        case tree.Like(one, pattern, escape):
            text, form = value_of(one, ValueKind.TEXT), _like(pattern, escape)
            return lambda facts: None if (found := text(facts)) is None else form(found)
        case tree.TagIs(text):
            return lambda facts: _any_tag(facts, lambda tag: tag == text.encode())
        case tree.TagLike(pattern, escape):
            return lambda facts: _any_tag(facts, _like(pattern, escape))
        case tree.Routes(pattern):
            route = _route(pattern)
            return lambda facts: (
                None
                if (found := facts.header(tree.ROUTING_KEY_HEADER)) is None
                else route.fullmatch(b"." + found) is not None
            )


def _all(truths) -> Truth:
    found = list(truths)
    return False if False in found else None if None in found else True


def _any(truths) -> Truth:
    found = list(truths)
    return True if True in found else None if None in found else False


def value_of(node: tree.Operand, kind: ValueKind) -> Callable[[Facts], Value]:
    match node:
        case tree.Literal(value):
            return lambda _: value.encode() if isinstance(value, str) else value
        case tree.Minus(operand):
            inner = value_of(operand, ValueKind.NUMBER)
            return lambda facts: None if (found := inner(facts)) is None else -found
        case tree.Arithmetic(sign, left, right):
            first = value_of(left, ValueKind.NUMBER)
            second = value_of(right, ValueKind.NUMBER)
            return lambda facts: _calculated(sign, first(facts), second(facts))
        case tree.Field(FieldKind.HEADER, name):
            return lambda facts: _read(facts.header(name), kind)
        case tree.Field(FieldKind.TAG, _):
            return lambda facts: facts.header(tree.TAGS_HEADER)
        case tree.Field(FieldKind.KEY, _):
            return lambda facts: facts.key
        case tree.Field(FieldKind.TIMESTAMP, _):
            return lambda facts: facts.timestamp
        case tree.Field(FieldKind.PARTITION, _):
            return lambda facts: facts.partition
        case tree.Field(FieldKind.PRIORITY, name):
            return lambda facts: (
                _read(facts.header(name), ValueKind.NUMBER)
                if facts.has(name)
                else tree.DEFAULT_PRIORITY
            )


def _read(text: bytes | None, kind: ValueKind) -> Value:
    if text is None or kind is ValueKind.TEXT:
        return text
    if kind is ValueKind.TRUTH:
        return {b"true": True, b"false": False}.get(text.lower())
    if len(text) > 64 or not DECIMAL.match(text):
        return None
    digits = text.lstrip(b"+-")
    if digits.isdigit() and len(digits) <= 18:
        return int(text)
    return _finite(float(text))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _calculated(sign: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    found = ARITHMETIC[sign](float(left), float(right))
    return None if found is None else _finite(found)


def _compared(left: Value, right: Value, accepted: Order) -> Truth:
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    order = Order.LESS if left < right else Order.GREATER if left > right else Order.EQUAL
    return bool(order & accepted)


def _like(pattern: str, escape: str) -> Callable[[bytes], bool]:
    form = b""
    characters = iter(pattern)
    for one in characters:
        if escape and one == escape:
            form += re.escape(next(characters).encode())
        elif one == "%":
            form += b"(?s:.*)"
        elif one == "_":
            form += rb"[^\x80-\xbf][\x80-\xbf]*"
        else:
            form += re.escape(one.encode())
    compiled = re.compile(form)
    return lambda text: compiled.fullmatch(text) is not None


def _any_tag(facts: Facts, test: Callable[[bytes], bool]) -> Truth:
    text = facts.header(tree.TAGS_HEADER)
    if text is None:
        return None
    tags = [tag.strip(b" ") for tag in text.split(b",")]
    return any(test(tag) for tag in tags if tag)


def _route(pattern: str) -> re.Pattern[bytes]:
    """Against the key with a dot before each word."""
    words = {"#": rb"(\.[^.]*)*", "*": rb"\.[^.]*"}
    return re.compile(
        b"".join(words.get(word, rb"\." + re.escape(word.encode())) for word in pattern.split("."))
    )
