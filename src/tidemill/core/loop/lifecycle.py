"""Every background task has an owner: this is the only module that starts them.

A `Supervisor` owns the tasks of one component. A task that ends with an exception is a bug or an
unhandled fault: the supervisor reports it to its owner, which stops the broker (fail-stop). No task
dies silently, and none outlives its supervisor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, final

__all__ = ["Supervisor"]


@final
class Supervisor:
    """The tasks of one component, started and ended together."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._stopping = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it returns or the supervisor stops; a stopped one does not start it."""
        if self._stopping:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        name = self._tasks.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failed(name, error)

    async def stop(self) -> None:
        """Cancel all running tasks, in the order in which they started, and wait for them."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
