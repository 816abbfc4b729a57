"""Which event loop a broker runs on: uvloop where it is, the standard one elsewhere."""

from __future__ import annotations

import asyncio

__all__ = ["new_event_loop"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not built for this platform: slower, otherwise the same
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
