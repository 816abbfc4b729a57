"""Which event loop a broker runs on, and what it does when an invariant breaks in a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, final

from tidemill.core.errors import InvariantViolation

__all__ = ["new_event_loop", "report_broken_invariants"]

Failed = Callable[[str, BaseException], None]
"""Called with the name of the part that failed, and its error."""
_Handler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop where uvloop is installed, else the standard one."""
    try:
        import uvloop
    except ImportError:  # there is none for this platform: slower, otherwise the same
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@final
class _Reporter:
    """An exception handler that reports broken invariants, then calls the handler before it."""

    def __init__(self, before: _Handler | None) -> None:
        self._before = before
        self.listeners: list[Failed] = []

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            for failed in list(self.listeners):
                failed("a callback", error)
        if self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)


def report_broken_invariants(loop: asyncio.AbstractEventLoop, failed: Failed) -> Callable[[], None]:
    """Call `failed` when an invariant breaks in a callback, which loops only log (R15).

    The loop does not know to which broker a callback belongs, so every broker on the loop is told.
    Returns the function that ends the reports.
    """
    reporter = loop.get_exception_handler()
    if not isinstance(reporter, _Reporter):
        reporter = _Reporter(reporter)
        loop.set_exception_handler(reporter)
    listeners = reporter.listeners
    listeners.append(failed)
    return lambda: listeners.remove(failed)
