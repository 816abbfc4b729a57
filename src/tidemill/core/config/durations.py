"""Lengths of time as users write them: `500ms`, `30s`, `10m`, `1h30m`, `2d`. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["UNIT_MS", "parse_duration_ms", "short_duration"]

UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_PART: Final = re.compile(r"(\d{1,15})(ms|s|m|h|d)", re.ASCII)
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern}){{1,5}}", re.ASCII)
_UNITS_SHOWN = 2


def parse_duration_ms(text: str) -> int:
    """Milliseconds; ValueError if it is no length of time."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text!a}: expected a length of time like 500ms, 30s, 10m, 1h30m or 2d")
    return sum(int(number) * UNIT_MS[unit] for number, unit in _PART.findall(text))


def short_duration(length_ms: int) -> str:
    """A length of time by its two largest units, the rest left out: `1h30m`, `12s`."""
    parts: list[str] = []
    for unit, unit_ms in reversed(UNIT_MS.items()):
        count, length_ms = divmod(length_ms, unit_ms)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == _UNITS_SHOWN:
            break
    return "".join(parts) or "0s"
