"""The tree of a selector.

Values are texts, numbers and truths. A header has no type of its own: the comparison that it is
part of says as what it is read, and a header that is missing or cannot be read so is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import final

__all__ = [
    "And",
    "Arithmetic",
    "Comparison",
    "Condition",
    "Constant",
    "Field",
    "FieldKind",
    "IsNull",
    "Like",
    "Literal",
    "Minus",
    "Not",
    "Operand",
    "Or",
    "Order",
    "Routes",
    "TagIs",
    "TagLike",
    "ValueKind",
]

PRIORITY_HEADER = b"tidemill.priority"
ROUTING_KEY_HEADER = b"tidemill.routing-key"
TAGS_HEADER = b"tidemill.tags"
DEFAULT_PRIORITY = 4


class ValueKind(Enum):
    """As what a value is read."""

    TEXT = "text"
    NUMBER = "a number"
    TRUTH = "TRUE or FALSE"


class FieldKind(Enum):
    """Which part of a record a name stands for."""

    HEADER = "header"
    KEY = "_key"
    TIMESTAMP = "_timestamp"
    PARTITION = "_partition"
    PRIORITY = "priority"
    TAG = "tag"


class Order(IntFlag):
    """The outcomes of comparing two values; an operator accepts some of them."""

    LESS = 1
    EQUAL = 2
    GREATER = 4


@final
@dataclass(frozen=True, slots=True)
class Literal:
    """A value in the selector."""

    value: str | int | float | bool


@final
@dataclass(frozen=True, slots=True)
class Field:
    """A part of the record."""

    kind: FieldKind
    header: bytes = b""
    """The name of the header, if it is one."""


@final
@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`+ - * /` of two numbers, in double precision."""

    operator: str
    left: Operand
    right: Operand


@final
@dataclass(frozen=True, slots=True)
class Minus:
    """A number with the other sign."""

    operand: Operand


@final
@dataclass(frozen=True, slots=True)
class Comparison:
    """Whether two values, both read as `kind`, are in one of the accepted orders."""

    accepted: Order
    left: Operand
    right: Operand
    kind: ValueKind


@final
@dataclass(frozen=True, slots=True)
class Like:
    """Whether a text has the form of a pattern."""

    field: Field
    pattern: str
    escape: str = ""


@final
@dataclass(frozen=True, slots=True)
class TagIs:
    """Whether one of the record's tags is this text."""

    text: str


@final
@dataclass(frozen=True, slots=True)
class TagLike:
    """Whether one of the record's tags has the form of a pattern."""

    pattern: str
    escape: str = ""


@final
@dataclass(frozen=True, slots=True)
class Routes:
    """Whether the routing key has the words of a pattern: `*` is one, `#` any number."""

    pattern: str


@final
@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether the record lacks a field; never unknown."""

    field: Field


@final
@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE or FALSE as a condition."""

    value: bool


@final
@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition


@final
@dataclass(frozen=True, slots=True)
class And:
    left: Condition
    right: Condition


@final
@dataclass(frozen=True, slots=True)
class Or:
    left: Condition
    right: Condition


Operand = Literal | Field | Arithmetic | Minus
Condition = Comparison | Like | TagIs | TagLike | Routes | IsNull | Constant | Not | And | Or
