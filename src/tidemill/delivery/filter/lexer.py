"""Splits the text of a selector into tokens."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple, final

__all__ = ["SelectorError", "Token", "TokenKind", "tokens_of"]

_SHOWN_CHARS_MAX = 20


class SelectorError(ValueError):
    """The text is not a selector; says where."""

    def __init__(self, column: int, detail: str) -> None:
        super().__init__(f"column {column}: {detail}")
        self.column = column


class TokenKind(Enum):
    """What a token is."""

    NAME = "name"
    KEYWORD = "keyword"
    TEXT = "text"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


@final
class Token(NamedTuple):
    """One token; the text is what it stands for: without quotes, keywords in capitals."""

    kind: TokenKind
    text: str
    column: int
    is_quoted: bool = False

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords or symbols."""
        return self.kind in (TokenKind.KEYWORD, TokenKind.SYMBOL) and self.text in words

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return "the end"
        return repr(self.text[:_SHOWN_CHARS_MAX])


KEYWORDS = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
)

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
  | "(?P<quoted>(?:[^"]|"")*)"
  | '(?P<text>(?:[^']|'')*)'
  | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_$.]))
  | (?P<symbol><>|<=|>=|[=<>()+\-*/,])
    """,
    re.VERBOSE,
)


def tokens_of(text: str) -> list[Token]:
    """All tokens, and one for the end; SelectorError."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise SelectorError(position + 1, _complaint(text[position]))
        if found.lastgroup != "space":
            tokens.append(_token(found, position + 1))
        position = found.end()
    tokens.append(Token(TokenKind.END, "", len(text) + 1))
    return tokens


def _token(found: re.Match[str], column: int) -> Token:
    group = found.lastgroup or ""
    text = found[group]
    match group:
        case "name" if text.upper() in KEYWORDS:
            return Token(TokenKind.KEYWORD, text.upper(), column)
        case "quoted":
            return Token(TokenKind.NAME, text.replace('""', '"'), column, is_quoted=True)
        case "text":
            return Token(TokenKind.TEXT, text.replace("''", "'"), column)
        case _:
            return Token(TokenKind(group), text, column)


def _complaint(character: str) -> str:
    match character:
        case "'":
            return "a text without its closing '"
        case '"':
            return 'a name without its closing "'
        case _ if character.isdigit() or character == ".":
            return "not a number"
        case _:
            return f"{character!a} is not part of any selector"
