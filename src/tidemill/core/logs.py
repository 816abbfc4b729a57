"""Log lines: a peer's text is an escaped field of bounded length, never a format (R18, S52)."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from tidemill.core.limits import LOGGED_NAMES_MAX, LOGGED_TEXT_CHARS_MAX

__all__ = ["LineFormatter", "RateLimit", "listed", "shown"]

_DELETE = "\x7f"
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def shown(text: object) -> str:
    """A peer's text as a JSON string of at most 256 characters, without control characters."""
    cut = str(text)[:LOGGED_TEXT_CHARS_MAX]
    return json.dumps(cut).replace(_DELETE, "\\u007f")


def listed(names: Sequence[object], most: int = LOGGED_NAMES_MAX) -> str:
    """The first names, and how many more there are: what happens to thousands is one line."""
    more = len(names) - most
    first = ", ".join(map(str, names[:most]))
    return f"{first} and {more} more" if more > 0 else first


@final
class LineFormatter(logging.Formatter):
    """One line per log record; the lines of a traceback follow with a marker in front of each.

    The last defence: an exception's text may quote a peer without escaping it.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_CONTROL)

    def format(self, record: logging.LogRecord) -> str:
        first, *rest = super().format(record).split("\n")
        return "\n".join([first, *(f"  | {line.translate(_CONTROL)}" for line in rest)])


@final
class RateLimit:
    """At most one log line per peer and interval, for at most `PEERS_MAX` peers per interval."""

    PEERS_MAX = 1024

    def __init__(self, interval_s: float = 60.0) -> None:
        self._interval_s = interval_s
        self._last: OrderedDict[str, float] = OrderedDict()
        """When each peer had its last line, the oldest first."""

    def allows(self, peer: str, now: float) -> bool:
        last = self._last
        while last and now - next(iter(last.values())) >= self._interval_s:
            last.popitem(last=False)
        if peer in last or len(last) >= self.PEERS_MAX:
            return False
        last[peer] = now
        return True
