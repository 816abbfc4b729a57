"""Whether the committed offset of one partition behaved as a linearizable register (I28).

Every commit has a value of its own, so a read names the commit that it saw. All operations on one
value are a *cluster*: its commit and the reads that returned it. With unique values, a history is
linearizable if and only if no two clusters need the register at the same time (Gibbons and Korach,
"Testing Shared Memories"): a cluster whose first end is before its last beginning needs it all the
time between the two; no other such cluster may overlap, and no cluster may lie inside.

A commit without an answer may take effect at any time after it was sent, or never. One that was
refused must never be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import NamedTuple

__all__ = ["NO_OFFSET", "Fate", "OffsetRegister", "SentCommit"]

NO_OFFSET = -1
"""What a read returns before the first commit."""
BEFORE_ALL = -1
NEVER = 1 << 62


class Fate(Enum):
    """What the sender of a commit knows of it."""

    UNKNOWN = auto()
    """It was sent, and not answered (yet)."""
    DONE = auto()
    REFUSED = auto()


@dataclass(slots=True)
class SentCommit:
    """One commit of one partition."""

    value: int
    asked: int
    """Its moment: all events of a run are numbered."""
    text: str = ""
    answered: int = NEVER
    fate: Fate = Fate.UNKNOWN

    def settle(self, fate: Fate, moment: int) -> None:
        self.fate, self.answered = fate, moment


class _Span(NamedTuple):
    """Of an operation: when it was asked for, and when it was answered."""

    asked: int
    answered: int


@dataclass(slots=True)
class _Cluster:
    """All operations on one value."""

    value: int
    text: str
    spans: list[_Span]

    @property
    def first_end(self) -> int:
        return min(one.answered for one in self.spans)

    @property
    def last_start(self) -> int:
        return max(one.asked for one in self.spans)

    @property
    def holds_register(self) -> bool:
        return self.first_end < self.last_start

    def __str__(self) -> str:
        return f"{self.value} ({self.text}, {len(self.spans) - 1} reads)"


@dataclass(slots=True)
class OffsetRegister:
    """The commits and reads of one partition of one group."""

    name: str
    _commits: dict[int, SentCommit] = field(default_factory=dict)
    _reads: dict[int, list[_Span]] = field(default_factory=dict)

    def commit(self, moment: int, text: str = "") -> SentCommit:
        """A commit is about to be sent; its value is larger than those of all before."""
        sent = SentCommit(len(self._commits), moment, text)
        self._commits[sent.value] = sent
        return sent

    def read(self, value: int, *, asked: int, answered: int) -> None:
        self._reads.setdefault(value, []).append(_Span(asked, answered))

    @property
    def done(self) -> int:
        return sum(one.fate is Fate.DONE for one in self._commits.values())

    def check(self) -> None:
        clusters = list(self._clusters())
        held = sorted((one for one in clusters if one.holds_register), key=lambda c: c.first_end)
        for before, after in pairwise(held):
            assert before.last_start <= after.first_end, (
                f"I28: {self.name}: {before} and {after} were each current while the other was"
            )
        for inner in clusters:
            if inner.holds_register:
                continue
            for outer in held:
                is_inside = (
                    outer.first_end < inner.last_start and inner.first_end < outer.last_start
                )
                assert not is_inside, (
                    f"I28: {self.name}: {inner} is lost: {outer} was current before and after it"
                )

    def _clusters(self) -> Iterable[_Cluster]:
        """One for each value that was read or acknowledged."""
        yield _Cluster(
            NO_OFFSET,
            "no commit",
            [_Span(BEFORE_ALL, BEFORE_ALL), *self._reads.get(NO_OFFSET, [])],
        )
        for value, reads in self._reads.items():
            sent = self._commits.get(value)
            assert sent is not None or value == NO_OFFSET, f"I28: {self.name}: {value} is nobody's"
            if sent is not None:
                assert sent.fate is not Fate.REFUSED, (
                    f"I28: {self.name}: {value} ({sent.text}) was refused, and was read"
                )
                assert all(sent.asked < one.answered for one in reads), (
                    f"I28: {self.name}: {value} was read before it was sent"
                )
        for sent in self._commits.values():
            reads = self._reads.get(sent.value, [])
            if reads or sent.fate is Fate.DONE:
                span = _Span(sent.asked, sent.answered)
                yield _Cluster(sent.value, sent.text, [span, *reads])
