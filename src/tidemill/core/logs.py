"""Log lines: what a peer said goes in as an escaped, cut field, never as a format (R18, S52)."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import final

from tidemill.core.limits import LOGGED_TEXT_CHARS_MAX

__all__ = ["RateLimit", "shown"]


def shown(text: object) -> str:
    """A peer's text as a JSON string: no control character survives, and no more than 256 chars."""
    return json.dumps(str(text)[:LOGGED_TEXT_CHARS_MAX])


@final
class RateLimit:
    """At most one log line per peer and interval; the map of peers is bounded."""

    PEERS_MAX = 1024

    def __init__(self, interval_s: float = 60.0) -> None:
        self._interval_s = interval_s
        self._last: OrderedDict[str, float] = OrderedDict()

    def allows(self, peer: str, now: float) -> bool:
        last = self._last.get(peer)
        if last is not None and now - last < self._interval_s:
            return False
        self._last[peer] = now
        self._last.move_to_end(peer)
        if len(self._last) > self.PEERS_MAX:
            self._last.popitem(last=False)
        return True
