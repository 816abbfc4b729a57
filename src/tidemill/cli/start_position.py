"""The start position of `consume --from` and the time of `group reset --to-time`."""

from __future__ import annotations

from datetime import datetime

from tidemill.client.consuming.consumer import EARLIEST, LATEST, AtOffset, AtTime, StartPosition
from tidemill.core.config.durations import parse_duration_ms
from tidemill.core.errors import UserError

__all__ = ["parse_start_position", "parse_time_ms"]

_OFFSET_DIGITS_MAX = 18


def parse_start_position(text: str, *, now_ms: int) -> StartPosition:
    """`beginning`, `end`, an offset, an age such as -10m, or an ISO 8601 time (local if bare)."""
    match text:
        case "beginning":
            return EARLIEST
        case "end":
            return LATEST
    if text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS_MAX:
        return AtOffset(int(text))
    try:
        return AtTime(parse_time_ms(text, now_ms=now_ms))
    except ValueError:
        raise UserError(
            f"--from {text}: expected beginning, end, an offset, an age such as -10m (ms s m h d) "
            "or a time such as 2026-11-15T21:30:00Z"
        ) from None


def parse_time_ms(text: str, *, now_ms: int) -> int:
    """An age such as -10m, or an ISO 8601 time (local if bare); ValueError if it is neither."""
    if text.startswith("-"):
        return max(0, now_ms - parse_duration_ms(text[1:]))
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (OverflowError, OSError) as error:
        raise ValueError(text) from error
