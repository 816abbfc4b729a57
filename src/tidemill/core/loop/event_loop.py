"""Which event loop a broker runs on, and what it does when an invariant breaks in a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, final

from tidemill.core.errors import InvariantViolation

__all__ = ["new_event_loop", "report_broken_invariants"]

Failed = Callable[[str, BaseException], None]
"""Hears which part failed, and how."""
_Handler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is, the standard one elsewhere."""
    try:
        import uvloop
    except ImportError:  # not built for this platform: slower, otherwise the same
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@final
class _Reporter:
    """An exception handler that also tells brokers; what it stands before still hears of all."""

    def __init__(self, before: _Handler | None) -> None:
        self._before = before
        self.told: list[Failed] = []

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            for failed in list(self.told):
                failed("a callback", error)
        if self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)


def report_broken_invariants(loop: asyncio.AbstractEventLoop, failed: Failed) -> Callable[[], None]:
    """Tell `failed` of invariants that break in callbacks, which loops only log (R15).

    Nobody knows whose callback it was: of several brokers on one loop, each is told. The function
    that comes back ends it.
    """
    reporter = loop.get_exception_handler()
    if not isinstance(reporter, _Reporter):
        reporter = _Reporter(reporter)
        loop.set_exception_handler(reporter)
    told = reporter.told
    told.append(failed)
    return lambda: told.remove(failed)
