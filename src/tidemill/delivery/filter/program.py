"""Compiles a selector's tree to the flat program that `hot/header_match` runs.

The program works on a stack: operands are pushed, an operation replaces them by its outcome. After
the left side of AND or OR a jump leaves out the right side if the left one decides.
"""

from __future__ import annotations

from array import array
from typing import assert_never, final

from tidemill.delivery.filter.parser import parse_selector
from tidemill.delivery.filter.patterns import like_net, route_net
from tidemill.delivery.filter.tree import (
    DEFAULT_PRIORITY,
    ROUTING_KEY_HEADER,
    TAGS_HEADER,
    And,
    Arithmetic,
    Comparison,
    Condition,
    Constant,
    Field,
    FieldKind,
    IsNull,
    Like,
    Literal,
    Minus,
    Not,
    Operand,
    Or,
    Routes,
    TagIs,
    TagLike,
    ValueKind,
)
from tidemill.hot.header_match import OPERATIONS, Program

__all__ = ["Assembler", "compile_selector"]

_ARITHMETIC = {
    "+": "ADD",
    "-": "SUBTRACT",
    "*": "MULTIPLY",
    "/": "DIVIDE",
}
_COMPARE = {
    ValueKind.TEXT: "COMPARE_TEXTS",
    ValueKind.NUMBER: "COMPARE_NUMBERS",
    ValueKind.TRUTH: "COMPARE_TRUTHS",
}
_LOAD_HEADER = {
    ValueKind.TEXT: "LOAD_TEXT",
    ValueKind.NUMBER: "LOAD_NUMBER",
    ValueKind.TRUTH: "LOAD_TRUTH",
}


def compile_selector(text: str) -> Program:
    """The program of a selector; SelectorError. An empty text matches every record."""
    assembler = Assembler()
    assembler.condition(parse_selector(text) if text.strip() else Constant(True))
    return assembler.program()


@final
class Assembler:
    """The parts of the program so far."""

    def __init__(self) -> None:
        self._code = array("q")
        self._pool = bytearray()
        self._reals = array("d")
        self._nets = array("Q")
        self._routes = array("q")
        self._slots: dict[bytes, int] = {}
        """The headers that the program reads, by name."""
        self._height = 0
        self._height_max = 0

    def program(self) -> Program:
        names = array("q")
        for name in self._slots:
            names.extend(self._pooled(name))
        return Program(
            self._code,
            bytes(self._pool),
            self._reals,
            self._nets,
            self._routes,
            names,
            self._height_max,
        )

    # --- conditions ------------------------------------------------------------------------------

    def condition(self, node: Condition) -> None:
        """Add what pushes whether the condition holds: true, false or unknown."""
        match node:
            case Not(condition):
                self.condition(condition)
                self.put("NOT", height=0)
            case And(left, right):
                self._both(left, right, "JUMP_IF_FALSE", "AND")
            case Or(left, right):
                self._both(left, right, "JUMP_IF_TRUE", "OR")
            case Constant(value):
                self.put("PUSH_TRUTH", int(value))
            case _:
                self._test(node)

    def _test(self, node: Comparison | Like | TagIs | TagLike | Routes | IsNull) -> None:
        """Add a condition that has no other ones in it."""
        match node:
            case Comparison(accepted, left, right, kind):
                self._operand(left, kind)
                self._operand(right, kind)
                self.put(_COMPARE[kind], int(accepted), height=-1)
            case Like(field, pattern, escape):
                self._operand(field, ValueKind.TEXT)
                self.put("LIKE", self._net(pattern, escape), height=0)
            case TagIs(text):
                at, size = self._pooled(text.encode())
                self.put("TAG_IS", self._slot(TAGS_HEADER), at, size)
            case TagLike(pattern, escape):
                net = self._net(pattern, escape)
                self.put("TAG_LIKE", self._slot(TAGS_HEADER), net)
            case Routes(pattern):
                route, count = self._route(pattern)
                self.put("ROUTES", self._slot(ROUTING_KEY_HEADER), route, count)
            case IsNull(field):
                self._operand(field, ValueKind.TEXT)
                self.put("IS_NULL", height=0)
            case _:
                assert_never(node)

    def _both(self, left: Condition, right: Condition, jump: str, join: str) -> None:
        self.condition(left)
        at = len(self._code)
        self.put(jump, height=0)
        self.condition(right)
        self.put(join, height=-1)
        self._code[at + 1] = len(self._code)

    # --- operands --------------------------------------------------------------------------------

    def _operand(self, node: Operand, kind: ValueKind) -> None:
        """Add what pushes the value, with headers read as `kind`."""
        match node:
            case Literal(value):
                self._literal(value)
            case Field():
                self._field(node, kind)
            case Arithmetic(operator, left, right):
                self._operand(left, ValueKind.NUMBER)
                self._operand(right, ValueKind.NUMBER)
                self.put(_ARITHMETIC[operator], height=-1)
            case Minus(operand):
                self._operand(operand, ValueKind.NUMBER)
                self.put("NEGATE", height=0)
            case _:
                assert_never(node)

    def _literal(self, value: str | int | float | bool) -> None:
        match value:
            case bool():
                self.put("PUSH_TRUTH", int(value))
            case str():
                self.put("PUSH_TEXT", *self._pooled(value.encode()))
            case int():
                self.put("PUSH_LONG", value)
            case float():
                self._reals.append(value)
                self.put("PUSH_REAL", len(self._reals) - 1)

    def _field(self, field: Field, kind: ValueKind) -> None:
        match field.kind:
            case FieldKind.HEADER:
                self.put(_LOAD_HEADER[kind], self._slot(field.header))
            case FieldKind.TAG:
                self.put("LOAD_TEXT", self._slot(TAGS_HEADER))
            case FieldKind.KEY:
                self.put("LOAD_KEY")
            case FieldKind.TIMESTAMP:
                self.put("LOAD_TIMESTAMP")
            case FieldKind.PARTITION:
                self.put("LOAD_PARTITION")
            case FieldKind.PRIORITY:
                slot = self._slot(field.header)
                self.put("LOAD_NUMBER_OR", slot, DEFAULT_PRIORITY)
            case _:
                assert_never(field.kind)

    # --- parts -----------------------------------------------------------------------------------

    def put(
        self, operation: str, first: int = 0, second: int = 0, third: int = 0, *, height: int = 1
    ) -> None:
        """Add an instruction that makes the stack higher by `height`."""
        self._code.extend((OPERATIONS[operation], first, second, third))
        self._height += height
        self._height_max = max(self._height_max, self._height)

    def _pooled(self, text: bytes) -> tuple[int, int]:
        at = len(self._pool)
        self._pool += text
        return at, len(text)

    def _slot(self, header: bytes) -> int:
        return self._slots.setdefault(header, len(self._slots))

    def _net(self, pattern: str, escape: str) -> int:
        net = like_net(pattern, escape)
        at = len(self._nets)
        self._nets.extend(net.accepts)
        self._nets.extend((net.stays, net.goes_on, 1 << net.parts))
        return at

    def _route(self, pattern: str) -> tuple[int, int]:
        net = route_net(pattern)
        at = len(self._routes)
        for word in net.words:
            self._routes.extend((0, -1) if word is None else self._pooled(word))
        self._nets.append(net.stays)
        self._routes.append(len(self._nets) - 1)
        return at, len(net.words)
