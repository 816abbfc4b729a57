"""How often a broker that ends may be started again."""

from __future__ import annotations

from collections import deque
from typing import final

__all__ = ["RESTARTS_MAX", "WINDOW_S", "RestartLimit"]

RESTARTS_MAX = 5
WINDOW_S = 300.0


@final
class RestartLimit:
    """So many restarts in any window of time: a broker that cannot live is not tried for ever."""

    def __init__(self) -> None:
        self._restarts: deque[float] = deque(maxlen=RESTARTS_MAX)

    def try_take(self, now: float) -> bool:
        """Whether one more restart is allowed; it counts from now on."""
        restarts = self._restarts
        while restarts and now - restarts[0] >= WINDOW_S:
            restarts.popleft()
        if len(restarts) >= RESTARTS_MAX:
            return False
        restarts.append(now)
        return True

    @property
    def taken(self) -> int:
        """The restarts within the window, as of the last one."""
        return len(self._restarts)
