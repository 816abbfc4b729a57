"""Parses selectors: JMS's language, a part of SQL-92, by operator precedence (Pratt).

    condition   = condition OR condition | condition AND condition | NOT condition | (condition)
                | operand = <> < <= > >= operand | operand [NOT] BETWEEN operand AND operand
                | operand [NOT] IN (literal, ...) | field [NOT] LIKE text [ESCAPE text]
                | field IS [NOT] NULL | routes(text) | header | TRUE | FALSE
    operand     = operand + - * / operand | - operand | (operand) | field | literal
    field       = header | "header" | _key | _timestamp | _partition | priority | tag

BETWEEN and IN become comparisons, so the tree has neither. The text is bounded in bytes, terms
(conditions and arithmetic operators) and nesting (S37); an error names its column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NoReturn, final

from tidemill.core.limits import (
    SELECTOR_BYTES_MAX,
    SELECTOR_DEPTH_MAX,
    SELECTOR_TERMS_MAX,
)
from tidemill.delivery.filter.lexer import SelectorError, Token, TokenKind, tokens_of
from tidemill.delivery.filter.patterns import check_like, check_routes
from tidemill.delivery.filter.tree import (
    PRIORITY_HEADER,
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
    Order,
    Routes,
    TagIs,
    TagLike,
    ValueKind,
)

__all__ = ["parse_selector"]

_EXACT_DIGITS_MAX = 18
"""A whole number of more digits is read as a double, in a header too."""

_ORDERS = {
    "=": Order.EQUAL,
    "<>": Order.LESS | Order.GREATER,
    "<": Order.LESS,
    "<=": Order.LESS | Order.EQUAL,
    ">": Order.GREATER,
    ">=": Order.GREATER | Order.EQUAL,
}
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN = range(1, 8)
_POWERS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys((*_ORDERS, "NOT", "BETWEEN", "IN", "LIKE", "IS"), _COMPARISON),
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
}
"""How strongly a word between two parts binds them."""
_FIELDS = {kind.value: kind for kind in FieldKind if kind is not FieldKind.HEADER}
_FIELD_KINDS = {
    FieldKind.KEY: ValueKind.TEXT,
    FieldKind.TIMESTAMP: ValueKind.NUMBER,
    FieldKind.PARTITION: ValueKind.NUMBER,
    FieldKind.PRIORITY: ValueKind.NUMBER,
}
_Node = Operand | Condition


def parse_selector(text: str) -> Condition:
    """The tree; SelectorError."""
    if len(text.encode()) > SELECTOR_BYTES_MAX:
        raise SelectorError(1, f"a selector has {SELECTOR_BYTES_MAX} bytes at most")
    parser = _Parser(tokens_of(text))
    return parser.whole()


@final
class _Parser:
    """The tokens that are left, and what the selector has cost so far."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._terms = 0
        self._depth = 0

    def whole(self) -> Condition:
        first = self._next
        found = self._condition(self._parse(0), first)
        if self._next.kind is not TokenKind.END:
            self._refuse(self._next, f"expected an operator, found {self._next}")
        return found

    # --- tokens ----------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _take(self) -> Token:
        token = self._next
        if token.kind is not TokenKind.END:
            self._position += 1
        return token

    def _take_if(self, *words: str) -> bool:
        if not self._next.is_word(*words):
            return False
        self._take()
        return True

    def _expect(self, word: str) -> None:
        if not self._take_if(word):
            self._refuse(self._next, f"expected {word}, found {self._next}")

    def _expect_text(self) -> str:
        token = self._take()
        if token.kind is not TokenKind.TEXT:
            self._refuse(token, f"expected a text in '', found {token}")
        return token.text

    def _refuse(self, token: Token, detail: str) -> NoReturn:
        raise SelectorError(token.column, detail)

    def _count_term(self, token: Token) -> None:
        self._terms += 1
        if self._terms > SELECTOR_TERMS_MAX:
            self._refuse(token, f"more than {SELECTOR_TERMS_MAX} terms")

    # --- precedence ------------------------------------------------------------------------------

    def _parse(self, power: int) -> _Node:
        """What stands here, up to the first word that binds no stronger than `power`."""
        first = self._next
        left = self._start()
        while _POWERS.get(self._next.text if self._is_operator else "", 0) > power:
            left = self._go_on(left, first)
        return left

    @property
    def _is_operator(self) -> bool:
        return self._next.kind in (TokenKind.KEYWORD, TokenKind.SYMBOL)

    def _nested(self, token: Token, power: int) -> _Node:
        self._depth += 1
        if self._depth > SELECTOR_DEPTH_MAX:
            self._refuse(token, f"nested more than {SELECTOR_DEPTH_MAX} deep")
        found = self._parse(power)
        self._depth -= 1
        return found

    def _start(self) -> _Node:
        token = self._take()
        match token.kind, token.text:
            case TokenKind.SYMBOL, "(":
                found = self._nested(token, 0)
                self._expect(")")
                return found
            case TokenKind.SYMBOL, "-" | "+":
                self._count_term(token)
                operand = self._number(self._nested(token, _SIGN), token)
                return operand if token.text == "+" else _negative(operand)
            case TokenKind.KEYWORD, "NOT":
                first = self._next
                return Not(self._condition(self._nested(token, _NOT), first))
            case TokenKind.NAME, name if self._next.is_word("(") and not token.is_quoted:
                return self._call(token, name)
            case TokenKind.NAME, name:
                return _field(name, is_quoted=token.is_quoted)
            case (TokenKind.TEXT | TokenKind.NUMBER, _) | (TokenKind.KEYWORD, "TRUE" | "FALSE"):
                return self._literal(token)
        self._refuse(token, f"expected a condition or a value, found {token}")

    def _go_on(self, left: _Node, first: Token) -> _Node:
        token = self._take()
        match token.text:
            case "OR" | "AND":
                before = self._condition(left, first)
                second = self._next
                power = _OR if token.text == "OR" else _AND
                after = self._condition(self._parse(power), second)
                return (Or if token.text == "OR" else And)(before, after)
            case "+" | "-" | "*" | "/":
                return self._arithmetic(token, left)
            case "IS":
                return self._null_test(token, left)
            case "NOT":
                if not self._next.is_word("BETWEEN", "IN", "LIKE"):
                    self._refuse(self._next, f"expected BETWEEN, IN or LIKE, found {self._next}")
                return Not(self._range_test(self._take(), left))
            case "BETWEEN" | "IN" | "LIKE":
                return self._range_test(token, left)
        right = self._operand(self._parse(_COMPARISON), token)
        return self._comparison(token, _ORDERS[token.text], self._operand(left, token), right)

    def _range_test(self, token: Token, left: _Node) -> Condition:
        operand = self._operand(left, token)
        match token.text:
            case "BETWEEN":
                return self._between(token, operand)
            case "IN":
                return self._in(token, operand)
            case _:
                return self._like(token, operand)

    # --- values ----------------------------------------------------------------------------------

    def _literal(self, token: Token) -> Literal:
        match token.kind:
            case TokenKind.TEXT:
                return Literal(token.text)
            case TokenKind.NUMBER:
                return Literal(self._number_of(token))
            case _:
                return Literal(token.text == "TRUE")

    def _number_of(self, token: Token) -> int | float:
        text = token.text
        if text.isdigit() and len(text) <= _EXACT_DIGITS_MAX:
            return int(text)
        value = float(text)
        if value == float("inf"):
            self._refuse(token, "the number is too large")
        return value

    def _arithmetic(self, token: Token, left: _Node) -> Operand:
        self._count_term(token)
        power = _SUM if token.text in "+-" else _PRODUCT
        before = self._number(left, token)
        return Arithmetic(token.text, before, self._number(self._parse(power), token))

    def _operand(self, node: _Node, token: Token) -> Operand:
        if not isinstance(node, Literal | Field | Arithmetic | Minus):
            self._refuse(token, f"{token} needs values, not conditions, on its sides")
        return node

    def _number(self, node: _Node, token: Token) -> Operand:
        operand = self._operand(node, token)
        if _kind_of(operand) not in (ValueKind.NUMBER, None) or _is_tag(operand):
            self._refuse(token, f"{token} needs numbers on its sides")
        return operand

    def _condition(self, node: _Node, token: Token) -> Condition:
        """A node as a condition: a header alone is true if its text is."""
        if isinstance(node, Literal) and isinstance(node.value, bool):
            self._count_term(token)
            return Constant(node.value)
        if isinstance(node, Field) and node.kind is FieldKind.HEADER:
            return self._comparison(token, Order.EQUAL, node, Literal(True))
        if isinstance(node, Literal | Field | Arithmetic | Minus):
            self._refuse(token, "expected a condition, found a value")
        return node

    # --- conditions ------------------------------------------------------------------------------

    def _comparison(
        self, token: Token, accepted: Order, left: Operand, right: Operand
    ) -> Condition:
        self._count_term(token)
        if _is_tag(left) or _is_tag(right):
            return self._tag_comparison(token, accepted, left, right)
        ours, theirs = _kind_of(left), _kind_of(right)
        if ours is not None and theirs is not None and ours is not theirs:
            self._refuse(token, f"{ours.value} and {theirs.value} cannot be compared")
        # Two headers are compared as texts.
        kind = ours or theirs or ValueKind.TEXT
        if kind is ValueKind.TRUTH and accepted not in (_ORDERS["="], _ORDERS["<>"]):
            self._refuse(token, "TRUE and FALSE are compared by = and <> only")
        return Comparison(accepted, left, right, kind)

    def _tag_comparison(
        self, token: Token, accepted: Order, left: Operand, right: Operand
    ) -> Condition:
        other = right if _is_tag(left) else left
        is_equality = accepted in (_ORDERS["="], _ORDERS["<>"])
        if not is_equality or not isinstance(other, Literal) or not isinstance(other.value, str):
            self._refuse(token, "a record has several tags: use =, <>, IN or LIKE with a text")
        found = TagIs(other.value)
        return found if accepted is Order.EQUAL else Not(found)

    def _between(self, token: Token, operand: Operand) -> Condition:
        low = self._operand(self._parse(_COMPARISON), token)
        self._expect("AND")
        high = self._operand(self._parse(_COMPARISON), token)
        return And(
            self._comparison(token, _ORDERS[">="], operand, low),
            self._comparison(token, _ORDERS["<="], operand, high),
        )

    def _in(self, token: Token, operand: Operand) -> Condition:
        self._expect("(")
        found: list[Condition] = []
        while not found or self._take_if(","):
            first = self._next
            item = self._parse(_COMPARISON)
            if not isinstance(item, Literal):
                self._refuse(first, f"expected a text or a number, found {first}")
            found.append(self._comparison(token, Order.EQUAL, operand, item))
        self._expect(")")
        return reduce(Or, found)

    def _like(self, token: Token, operand: Operand) -> Condition:
        if not isinstance(operand, Field) or _kind_of(operand) not in (ValueKind.TEXT, None):
            self._refuse(token, "LIKE needs a header, _key or tag on its left")
        self._count_term(token)
        at = self._next
        pattern = self._expect_text()
        escape = ""
        if self._take_if("ESCAPE"):
            escape_at = self._next
            escape = self._expect_text()
            if len(escape) != 1:
                self._refuse(escape_at, "ESCAPE needs one character")
        self._check(at, lambda: check_like(pattern, escape))
        if operand.kind is FieldKind.TAG:
            return TagLike(pattern, escape)
        return Like(operand, pattern, escape)

    def _null_test(self, token: Token, left: _Node) -> Condition:
        if not isinstance(left, Field) or left.kind not in (
            FieldKind.HEADER,
            FieldKind.KEY,
            FieldKind.TAG,
        ):
            self._refuse(token, "IS NULL needs a header, _key or tag on its left")
        self._count_term(token)
        is_not = self._take_if("NOT")
        self._expect("NULL")
        found = IsNull(left)
        return Not(found) if is_not else found

    def _call(self, token: Token, name: str) -> Condition:
        if name != "routes":
            self._refuse(token, f"no such function: {token}; there is routes('a.*.#')")
        self._count_term(token)
        self._expect("(")
        at = self._next
        pattern = self._expect_text()
        self._check(at, lambda: check_routes(pattern))
        self._expect(")")
        return Routes(pattern)

    def _check(self, token: Token, check: Callable[[], None]) -> None:
        try:
            check()
        except ValueError as error:
            self._refuse(token, str(error))


def _field(name: str, *, is_quoted: bool) -> Field:
    """A quoted name is always a header's."""
    kind = FieldKind.HEADER if is_quoted else _FIELDS.get(name, FieldKind.HEADER)
    if kind is FieldKind.PRIORITY:
        return Field(kind, PRIORITY_HEADER)
    return Field(kind, name.encode() if kind is FieldKind.HEADER else b"")


def _negative(operand: Operand) -> Operand:
    if isinstance(operand, Literal):
        assert not isinstance(operand.value, str)
        return Literal(-operand.value)
    return Minus(operand)


def _is_tag(operand: Operand) -> bool:
    return isinstance(operand, Field) and operand.kind is FieldKind.TAG


def _kind_of(operand: Operand) -> ValueKind | None:
    """None: a header or the tags, which the other side decides about."""
    match operand:
        case Literal(bool()):
            return ValueKind.TRUTH
        case Literal(str()):
            return ValueKind.TEXT
        case Field(kind):
            return _FIELD_KINDS.get(kind)
        case _:
            return ValueKind.NUMBER
