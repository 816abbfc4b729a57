"""Parsers for the values of options, which source, sink and pipelines share.

Every parser takes the text and the name of the option; its UserError names both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, final

from tidemill.core.config.broker_config import Endpoint, parse_endpoint
from tidemill.core.config.durations import UNIT_MS
from tidemill.core.errors import UserError
from tidemill.core.limits import KIB, MIB

__all__ = [
    "OptionReader",
    "parse_bootstrap",
    "parse_count",
    "parse_duration_ms",
    "parse_flag",
    "parse_number",
    "parse_size_bytes",
    "parse_word",
]

T = TypeVar("T")

_ADDRESSES_MAX: Final = 100
_SIZE: Final = re.compile(r"(\d{1,18})\s*([a-z]*)")
_SIZE_UNITS_BYTES: Final = {
    **{"": 1, "b": 1, "k": KIB, "kb": KIB, "m": MIB, "mb": MIB},
    **{"g": KIB * MIB},
}
_DURATION: Final = re.compile(r"(\d{1,15})\s*([a-z]+)")
_DURATION_WORDS: Final = {
    **{"millisecond": "ms", "msec": "ms", "second": "s", "sec": "s"},
    **{"minute": "m", "min": "m", "hour": "h", "day": "d"},
}


@final
class OptionReader:
    """Looks options up by the names in the documentation; the keys of `given` are lower case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def read(self, option: str, parse: Callable[[str, str], T], default: T) -> T:
        text = self._given.get(option.lower())
        return default if text is None else parse(text, option)


def parse_flag(text: str, option: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise UserError(f"{option}={text}: expected true or false")
    return text.lower() == "true"


def parse_number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f"{option}={text}: expected a whole number") from None


def parse_count(text: str, option: str) -> int:
    number = parse_number(text, option)
    if number < 1:
        raise UserError(f"{option}={text}: expected a number of at least 1")
    return number


def parse_size_bytes(text: str, option: str) -> int:
    match = _SIZE.fullmatch(text.strip().lower())
    unit = _SIZE_UNITS_BYTES.get(match[2]) if match is not None else None
    if match is None or unit is None or int(match[1]) < 1:
        raise UserError(f"{option}={text}: expected a size in bytes, or like 64m")
    return int(match[1]) * unit


def parse_word(text: str, option: str) -> str:
    if not text.strip():
        raise UserError(f"{option} is empty")
    return text.strip()


def parse_duration_ms(text: str, option: str) -> int:
    """`10m`, `90 seconds` or `500ms`."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is not None:
        name = match[2]
        unit = _DURATION_WORDS.get(name.removesuffix("s"), name)
        if unit in UNIT_MS:
            return int(match[1]) * UNIT_MS[unit]
    raise UserError(f"{option}={text}: expected a time like 500ms, 30s, 10m, 2h or 1d")


def parse_bootstrap(text: str, option: str) -> tuple[Endpoint, ...]:
    """HOST:PORT, several separated by commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not 1 <= len(parts) <= _ADDRESSES_MAX:
        raise UserError(f"{option} needs 1 to {_ADDRESSES_MAX} addresses, as in 127.0.0.1:9092")
    return tuple(parse_endpoint(part, key=option) for part in parts)
