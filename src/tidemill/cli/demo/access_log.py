"""Invented web-server log lines of a small shop, for the demo.

Combined log format. A few hundred visitors, each with an address and a browser, return again and
again, a few pages get most of the visits, most answers are 200. The same seed gives the same lines,
apart from their times.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple, final

from tidemill.core.rng import Rng

__all__ = ["AccessLog"]

_VISITORS = 400
_PRODUCTS = 120

_AGENTS = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/141.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_6) AppleWebKit/605.1.15 Version/18.1 Safari/605.1",
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/141.0 Mobile Safari/537.36",
    "Mozilla/5.0 (compatible; examplebot/2.1; +https://bot.example/about)",
)
_REFERERS = ("-", "-", "https://search.example/", "https://shop.example/", "https://news.example/")
_PAGES = ("/", "/", "/products", "/cart", "/login", "/static/site.css", "/static/site.js", "/about")
_STATUSES = (200,) * 85 + (304,) * 6 + (301,) * 2 + (404,) * 4 + (403,) * 1 + (500,) * 2


@final
class _Visitor(NamedTuple):
    address: str
    user: str
    agent: str


@final
class AccessLog:
    """An endless log. `line` takes about 3 us, so the demo measures the broker, not this class."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._visitors = [self._visitor() for _ in range(_VISITORS)]
        self._stamp_s = -1
        self._stamp = ""

    def _visitor(self) -> _Visitor:
        # 198.51.100.0/24 and 203.0.113.0/24 are reserved for examples (RFC 5737).
        network = ("198.51.100", "203.0.113")[self._rng.below(2)]
        user = f"user{self._rng.below(1000):03}" if self._rng.below(4) == 0 else "-"
        agent = _AGENTS[self._rng.below(len(_AGENTS))]
        return _Visitor(f"{network}.{1 + self._rng.below(254)}", user, agent)

    def line(self, now_ms: int) -> tuple[bytes, bytes]:
        """The next line, and the visitor's address as its key."""
        choice = self._rng.below(1 << 48)
        visitor = self._visitors[choice % _VISITORS]
        status = _STATUSES[(choice >> 12) % len(_STATUSES)]
        referer = _REFERERS[(choice >> 20) % len(_REFERERS)]
        size = 0 if status == 304 else 180 + (choice >> 28) % 24_000
        text = (
            f"{visitor.address} - {visitor.user} [{self._time(now_ms // 1000)}] "
            f'"{self._request(choice >> 36)}" {status} {size} "{referer}" "{visitor.agent}"'
        )
        return visitor.address.encode(), text.encode()

    def _request(self, choice: int) -> str:
        if choice % 3 == 0:
            return f"GET /products/{choice % _PRODUCTS} HTTP/1.1"
        if choice % 17 == 0:
            return "POST /cart/items HTTP/1.1"
        return f"GET {_PAGES[choice % len(_PAGES)]} HTTP/1.1"

    def _time(self, now_s: int) -> str:
        if now_s != self._stamp_s:
            self._stamp_s = now_s
            moment = datetime.fromtimestamp(now_s, UTC)
            self._stamp = moment.strftime("%d/%b/%Y:%H:%M:%S %z")
        return self._stamp
