"""The assignment protocols that all members of a classic group offer, and the vote among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tidemill.core.errors import invariant

__all__ = ["ProtocolSupport"]


@final
class ProtocolSupport:
    """Members per protocol; kept as counts so that a join does not iterate over members (S41)."""

    __slots__ = ("_counts", "_members")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._members = 0

    def add(self, offered: Iterable[str]) -> None:
        self._members += 1
        for name in offered:
            self._counts[name] = self._counts.get(name, 0) + 1

    def remove(self, offered: Iterable[str]) -> None:
        self._members -= 1
        for name in offered:
            self._counts[name] -= 1
            if not self._counts[name]:
                del self._counts[name]

    def suits_all(self, name: str) -> bool:
        return self._counts.get(name, 0) == self._members

    def has_common(self, offered: Iterable[str]) -> bool:
        """Whether all members offer at least one of these."""
        return any(self.suits_all(name) for name in offered)

    def elect(self, ballots: Iterable[Iterable[str]]) -> str:
        """The protocol that most members prefer among those that all offer (T43).

        In a tie the protocol with the first vote wins. Members vote in the order in which they
        joined, so the result is deterministic.
        """
        votes: dict[str, int] = {}
        for preferences in ballots:
            choice = next((name for name in preferences if self.suits_all(name)), None)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        invariant(votes, "the members of a classic group have no protocol in common")
        return max(votes, key=lambda name: votes[name])
