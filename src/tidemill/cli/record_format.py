"""How `consume` prints a record: a pattern for people, a JSON object for programs."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, final

from tidemill.cli.text import escape, escape_bytes
from tidemill.client.consuming.consumer import FetchedRecords
from tidemill.core.errors import UserError
from tidemill.wire.records import Record

__all__ = ["RecordFormat", "bytes_fact", "content_facts", "record_facts"]

_Piece = Callable[[FetchedRecords, Record], str]
_TOKEN = re.compile(r"%(.?)|\\(.?)", re.DOTALL)

_FIELDS: dict[str, _Piece] = {
    "t": lambda fetched, record: fetched.topic,
    "p": lambda fetched, record: str(fetched.partition),
    "o": lambda fetched, record: str(record.offset),
    "T": lambda fetched, record: str(record.timestamp),
    "k": lambda fetched, record: escape_bytes(record.key),
    "v": lambda fetched, record: escape_bytes(record.value),
    "h": lambda fetched, record: ",".join(
        f"{escape(key)}={escape_bytes(value)}" for key, value in record.headers
    ),
    "K": lambda fetched, record: str(-1 if record.key is None else len(record.key)),
    "V": lambda fetched, record: str(-1 if record.value is None else len(record.value)),
    "%": lambda fetched, record: "%",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "0": "\0"}


def _literal(text: str) -> _Piece:
    return lambda fetched, record: text


@final
class RecordFormat:
    """A pattern such as `%t %p %o %k %v`; checked once, then applied to every record.

    %t topic, %p partition, %o offset, %T timestamp in ms, %k key, %v value, %h headers,
    %K and %V sizes of key and value (-1: null), %% a percent sign; \\n, \\t, \\r, \\0, \\\\.
    """

    def __init__(self, pattern: str) -> None:
        self._pieces: list[_Piece] = []
        end = 0
        for token in _TOKEN.finditer(pattern):
            self._pieces.append(_literal(pattern[end : token.start()]))
            self._pieces.append(self._piece(token))
            end = token.end()
        self._pieces.append(_literal(pattern[end:]))

    @staticmethod
    def _piece(token: re.Match[str]) -> _Piece:
        field, escaped = token.groups()
        if field is not None and field in _FIELDS:
            return _FIELDS[field]
        if escaped is not None and escaped in _ESCAPES:
            return _literal(_ESCAPES[escaped])
        known = " ".join(f"%{name}" for name in _FIELDS)
        raise UserError(f"--format has no {token.group()!r}; it has {known} and \\n \\t \\r \\0")

    def render(self, fetched: FetchedRecords, record: Record) -> str:
        return "".join([piece(fetched, record) for piece in self._pieces])


def record_facts(fetched: FetchedRecords, record: Record) -> dict[str, Any]:
    """A record as a JSON object; bytes that are not UTF-8 become base64 under another name."""
    facts: dict[str, Any] = {
        "topic": fetched.topic,
        "partition": fetched.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
    }
    return facts | content_facts(record)


def content_facts(record: Record) -> dict[str, Any]:
    """Key, value and headers for JSON."""
    facts: dict[str, Any] = {**bytes_fact("key", record.key), **bytes_fact("value", record.value)}
    facts["headers"] = [
        {"key": escape(key)} | bytes_fact("value", value) for key, value in record.headers
    ]
    return facts


def bytes_fact(name: str, data: bytes | None) -> dict[str, str | None]:
    """A key or value: text under its name, other bytes as base64 under `<name>_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
