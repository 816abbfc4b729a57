"""Whether the controller answers this broker, and what to do when it does not. Pure.

A leader needs the controller to change an in-sync set. Where a network lets it reach the store and
not the controller, its partitions would stand still for as long as that lasts:

| no answer for   | what this broker does                                                          |
|-----------------|--------------------------------------------------------------------------------|
| one lag limit   | it says so in its registration; a controller that most brokers do not hear     |
|                 | gives up its office (`decisions.py`)                                           |
| two lag limits, | it steps aside, if partitions stand still here: others lead what they can      |
| then 4, 8, ...  | lead, and it comes back at once with the rest                                  |

A new controller starts with a clean record: the time counts from the first request to it.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["HEARD", "ControllerContact"]

HEARD: Final = -1
"""Instead of the epoch of a controller that does not answer."""
_GAP_S_MAX = 10.0
"""Requests that are further apart say nothing of the time between them: there was no lease."""
_FIRST_ASIDE = 2
_ASIDE_MAX = 64
"""In lag limits: eleven minutes by default. Where nobody reaches anybody it helps no partition."""


@final
class ControllerContact:
    """What became of this broker's requests to the controller."""

    def __init__(self) -> None:
        self._epoch = HEARD
        self._last_at = 0.0
        """When the last request without an answer ended."""
        self._silent_since = 0.0
        self._stood_since = 0.0
        """Since the silence began, or this broker stepped aside the last time."""
        self._aside_after = _FIRST_ASIDE
        """After so many lag limits this broker steps aside."""

    @property
    def is_heard(self) -> bool:
        """Whether the last request was answered."""
        return self._epoch == HEARD

    def answered(self) -> None:
        self._epoch = HEARD
        self._aside_after = _FIRST_ASIDE

    def unanswered(self, controller_epoch: int, now: float) -> None:
        """A request to the controller of this epoch had no answer, or found no way to it."""
        if controller_epoch != self._epoch or now - self._last_at > _GAP_S_MAX:
            self._epoch, self._silent_since, self._stood_since = controller_epoch, now, now
        self._last_at = now

    def unheard_controller(self, now: float, lag_s: float) -> int:
        """The epoch of a controller that has been silent for long; else HEARD."""
        return HEARD if now - self._silent_since < lag_s else self._epoch

    def try_step_aside(self, now: float, lag_s: float) -> bool:
        """Whether it is time to let others lead; each time is twice as far away as the last."""
        if self.is_heard or now - self._stood_since < self._aside_after * lag_s:
            return False
        self._stood_since = now
        self._aside_after = min(2 * self._aside_after, _ASIDE_MAX)
        return True
