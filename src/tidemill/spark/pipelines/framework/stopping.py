"""The wish to stop: SIGTERM and SIGINT, from the first moment of a run to its last."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, final

__all__ = ["StopRequest"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@final
class StopRequest:
    """Set once, by a signal or by a caller; a run looks at it between two steps."""

    def __init__(self) -> None:
        self.is_set = False
        self._interrupts = False

    def set(self) -> None:
        """Safe to call from a signal handler."""
        self.is_set = True

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Signals set the request while the block runs."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.set()
            if self._interrupts:
                raise KeyboardInterrupt

        before = [signal.signal(number, on_signal) for number in _SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """A signal ends this block at once; for work that nobody needs any more and that leaves
        nothing behind, such as the start of Spark."""
        self._interrupts = True
        try:
            yield
        except KeyboardInterrupt:
            if not self.is_set:
                raise
        finally:
            self._interrupts = False
