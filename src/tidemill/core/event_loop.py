"""Which event loop a broker runs on, and what it does when an invariant breaks in a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemill.core.errors import InvariantViolation

__all__ = ["new_event_loop", "report_broken_invariants"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is, the standard one elsewhere."""
    try:
        import uvloop
    except ImportError:  # not built for this platform: slower, otherwise the same
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def report_broken_invariants(
    loop: asyncio.AbstractEventLoop, failed: Callable[[str, BaseException], None]
) -> None:
    """Tell `failed` of invariants that break in callbacks, which loops only log (R15).

    Nobody knows whose callback it was: of several brokers on one loop, each is told.
    """
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, InvariantViolation):
            failed("a callback", error)
        if before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
