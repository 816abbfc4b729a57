"""No process is left behind by a start that is broken off.

Spark's JVM ends with the Python process that has started it, but not if that one ends while the JVM
is starting: it then waits for ever for a caller that is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["leaving_no_process"]


@contextlib.contextmanager
def leaving_no_process() -> Iterator[None]:
    """If the block raises, end all processes that it has started."""
    before = _descendants()
    try:
        yield
    except BaseException:
        for process_id in _descendants() - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        raise


def _descendants() -> set[int]:
    """Of this process; empty where /proc does not tell."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for file in sorted(Path(f"/proc/{waiting.pop()}/task").glob("*/children")):
            with contextlib.suppress(OSError):
                children = {int(word) for word in file.read_text().split()} - found
                found |= children
                waiting += children
    return found
