"""Lets a coroutine wait for a `Deferred`."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from tidemill.core.loop.deferred import Deferred

__all__ = ["wait_value"]

T = TypeVar("T")


async def wait_value(answer: T | Deferred[T]) -> T:
    """The value, now or when it comes."""
    if not isinstance(answer, Deferred):
        return answer
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def settle(value: T) -> None:
        if not future.done():  # whoever waited may be gone
            future.set_result(value)

    answer.then(settle)
    return await future
