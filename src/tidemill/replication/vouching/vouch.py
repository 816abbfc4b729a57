"""A follower's vouch, as its leader knows it: whoever gives it keeps silent as a successor. Pure.

A leader whose lease has ended may have a successor. It may go on all the same while everybody who
could be that successor has promised to keep silent for long enough (ADR 0017):

    leader     sends an answer at `t`; the follower's next fetch confirms it. That is a *vouch*: if
               all that may be elected vouch, it acts until `t + VOUCH_S` as if it had a lease
    follower   took the answer in at `t` or later. If it is elected, it is silent for `SILENCE_S`
               from then on: it appends nothing, answers no reader and moves no mark

So the leader has stopped before its successor begins. What counts is when an answer was sent, not
when its confirmation arrived: that can have lain in the socket of a process that stood still. The
difference of the two times is room for clocks that run at different speeds. Both are measured by
boot time, which runs while a machine sleeps.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["NO_VOUCH", "VOUCH_S", "Vouch"]

VOUCH_S: Final = 1.0
"""After it has sent an answer that was confirmed, a leader acts for so long without a lease."""
NO_VOUCH: Final = float("-inf")
ANSWERS_MAX: Final = 16
"""Unconfirmed ones that are remembered; a follower has two fetches on their way."""


@final
class Vouch:
    """One follower's vouch on one connection, as its leader knows it; it ends with that."""

    __slots__ = ("_sent_at", "until")

    def __init__(self) -> None:
        self.until = NO_VOUCH
        self._sent_at: dict[int, float] = {}

    def answered(self, number: int, now: float) -> None:
        """Answer `number` of this connection is made, and leaves now or later."""
        if len(self._sent_at) >= ANSWERS_MAX:
            del self._sent_at[next(iter(self._sent_at))]
        self._sent_at[number] = now

    def confirmed(self, seen: int) -> None:
        """The follower has taken in the first `seen` answers, and still follows."""
        for number in [one for one in self._sent_at if one <= seen]:
            self.until = max(self.until, self._sent_at.pop(number) + VOUCH_S)
