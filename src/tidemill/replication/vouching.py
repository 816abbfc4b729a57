"""Leading without the store: followers vouch for their leader, and keep silent after it. Pure.

A leader whose lease has ended may have a successor. It may go on all the same while everybody who
could be that successor has promised to keep silent for long enough (ADR 0017):

    leader     sends an answer at `t`; the follower's next fetch confirms it. That is a *vouch*: if
               all that may be elected vouch, it acts until `t + VOUCH_S` as if it had a lease
    follower   took the answer in at `t` or later. If it is elected, it is silent until `SILENCE_S`
               after that: it appends nothing, answers no reader and moves no mark

So the leader has stopped before its successor begins. What counts is when an answer was sent, not
when its confirmation arrived: that can have lain in the socket of a process that stood still. The
difference of the two times is room for clocks that run at different speeds. Both are measured by
boot time, which runs while a machine sleeps.

A former leader that fetches from its successor knows of it and has stopped: nobody waits for it any
longer. A process that starts does not know for whom it has vouched, and is silent at first.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["NO_VOUCH", "SILENCE_S", "VOUCH_S", "Silence", "Vouch"]

VOUCH_S: Final = 1.0
"""After it has sent an answer that was confirmed, a leader acts for so long without a lease."""
SILENCE_S: Final = 1.2
"""After it has taken in an answer of an earlier leader, a new leader is silent for so long."""
NO_VOUCH: Final = float("-inf")
ANSWERS_MAX: Final = 16
"""Unconfirmed ones that are remembered; a follower has two fetches on their way."""
_NOBODY_KNOWN: Final = -1


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


@final
class Silence:
    """For whom this broker may have vouched in one partition, and when last."""

    __slots__ = ("_heard_at",)

    def __init__(self, began_at: float) -> None:
        """An earlier life of this process may have vouched for anybody until `began_at`."""
        self._heard_at = {_NOBODY_KNOWN: began_at}

    def heard(self, leader_id: int, at: float) -> None:
        """The last answer of this leader that was taken in, when we stop following it."""
        self._heard_at[leader_id] = max(at, self._heard_at.get(leader_id, NO_VOUCH))

    def has_fetched(self, broker_id: int) -> None:
        """This broker follows us in our epoch: it leads no longer."""
        self._heard_at.pop(broker_id, None)

    def holds(self, now: float) -> bool:
        """Whether somebody may still act because of our vouch."""
        for leader_id in [one for one, at in self._heard_at.items() if now >= at + SILENCE_S]:
            del self._heard_at[leader_id]
        return bool(self._heard_at)
