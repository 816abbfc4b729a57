"""A day of a small shop in the time of the demo: daily curve, rush, outage, broken lines.

Lines come from `AccessLog`. Like a real log they also have a latency at the end, some lines in JSON
from a second server, and some lines that no program can read.
"""

from __future__ import annotations

import json
from math import pi, sin
from typing import NamedTuple, final

from tidemill.cli.demo.access_log import AccessLog
from tidemill.core.rng import Rng

__all__ = ["DemoLine", "DemoLog", "intensity"]

_RUSH = (0.30, 0.40)
_OUTAGE = (0.62, 0.72)
"""Parts of the day: twice the visitors; a database that answers late or not at all."""

_BROKEN_ONE_IN = 500
_JSON_ONE_IN = 8
_BASE_MS = (("/static", 3), ("/cart", 90), ("/login", 120), ("/products/", 45), ("/", 20))


@final
class DemoLine(NamedTuple):
    """One record; `broken` if it cannot become an event."""

    key: bytes
    value: bytes
    broken: bool


def intensity(share: float) -> float:
    """How busy the shop is at this part of the day; 1 is the average."""
    curve = 0.5 + 0.9 * sin(pi * min(max(share, 0.0), 1.0))
    return curve * 2.0 if _RUSH[0] <= share < _RUSH[1] else curve


@final
class DemoLog:
    """An endless log; the same random numbers give the same lines."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._lines = AccessLog(rng)

    def line(self, event_ms: int, share: float) -> DemoLine:
        """The next line, at the time `event_ms`; `share` is the part of the day that has passed."""
        key, line = self._lines.line(event_ms)
        chance = self._rng.below(1 << 40)
        is_outage = _OUTAGE[0] <= share < _OUTAGE[1]
        if is_outage and chance % 4 == 0:
            line = line.replace(b'" 200 ', b'" 503 ', 1)
        if (chance >> 4) % _BROKEN_ONE_IN == 0:
            return DemoLine(key, _broken(line, chance >> 16), broken=True)
        latency_ms = _latency_ms(line, chance >> 16, is_outage=is_outage)
        if (chance >> 8) % _JSON_ONE_IN == 0:
            return DemoLine(key, _as_json(line, event_ms, latency_ms), broken=False)
        return DemoLine(key, b"%s %.3f" % (line, latency_ms / 1000), broken=False)


def _latency_ms(line: bytes, chance: int, *, is_outage: bool) -> float:
    path = line.split(b" ", 7)[6].decode()
    base = next(ms for prefix, ms in _BASE_MS if path.startswith(prefix))
    tail = 12 if chance % 100 == 0 else 4 if chance % 20 == 0 else 1
    spread = 0.6 + (chance >> 8) % 1_000 / 1_000
    return base * tail * spread * (8 if is_outage and chance % 3 == 0 else 1)


def _as_json(line: bytes, event_ms: int, latency_ms: float) -> bytes:
    client, request, answer, referer, _, agent, *_ = line.decode().split('"')
    method, path, protocol = request.split(" ")
    status, size = answer.split()
    return json.dumps(
        {
            "time": event_ms,
            "remote_addr": client.split(" ", 1)[0],
            "method": method,
            "path": path,
            "protocol": protocol,
            "status": int(status),
            "bytes": int(size),
            "referer": referer,
            "user_agent": agent,
            "latency_ms": round(latency_ms, 1),
        }
    ).encode()


def _broken(line: bytes, chance: int) -> bytes:
    match chance % 4:
        case 0:
            return line[: 10 + chance % 30]  # cut off
        case 1:
            return b'{"time": "2026-0' + line[:20].replace(b'"', b"")  # half a document
        case 2:
            return line.replace(b"/", b".", 2)  # another date format
        case _:
            return b"\x16\x03\x01\xfe" + line[:40]  # TLS where HTTP was expected
