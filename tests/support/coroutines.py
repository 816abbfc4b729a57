"""The one way in which tests run a coroutine; the fixture `run` is this function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(
    work: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run `work` to its end on a new event loop."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)
