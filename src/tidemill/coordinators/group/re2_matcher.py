"""Evaluates regular expressions over topic names, with RE2 (ADR 0007, S37).

RE2 takes time in proportion to the length of a name, whatever the expression is. What is left to
bound is the factor, which is at worst the size of the compiled program, and the number of topics:

- The expression and its program have size limits (`re2_expression.py`).
- One call evaluates as many names as a slice of a few milliseconds holds in the worst case: fewer,
  the longer they are and the larger the program is.
- A result is kept, with the map of topics it was made from. The next call evaluates only the names
  that are new since then, and drops those that are gone.
- Few results are kept after their use. An evaluation that is going on is kept by the group that
  needs it, so that other groups cannot make it start again; beyond a number of them, groups wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, final
from weakref import WeakValueDictionary

from tidemill.coordinators.group.re2_expression import compile_expression
from tidemill.core.limits import PATTERNS_EVALUATED_MAX, PATTERNS_KEPT_MAX
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS

__all__ = ["Re2Matcher"]

SLICE_COST = 100_000
"""Characters of names times steps of the program that one call evaluates: 2 to 4 ms with the worst
expressions that were found, 0.3 ms with usual ones."""


@final
class Re2Matcher:
    """A `TopicMatcher` for all groups of a broker; it remembers the latest expressions."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Search] = OrderedDict()
        """The least recently used first; at most PATTERNS_KEPT_MAX."""
        self._alive: WeakValueDictionary[str, _Search] = WeakValueDictionary()
        """These, and those that groups hold."""

    def check(self, pattern: str) -> None:
        """INVALID_REGULAR_EXPRESSION, with the reason, if it cannot be used."""
        if self.try_search(pattern) is None:
            compile_expression(pattern)

    def try_search(self, pattern: str) -> _Search | None:
        """The evaluation of this expression; None while too many others are going on."""
        search = self._alive.get(pattern)
        if search is None:
            if len(self._alive) >= PATTERNS_KEPT_MAX + PATTERNS_EVALUATED_MAX:
                return None
            search = self._alive[pattern] = _Search(compile_expression(pattern))
        self._kept[pattern] = search
        self._kept.move_to_end(pattern)
        if len(self._kept) > PATTERNS_KEPT_MAX:
            self._kept.popitem(last=False)
        return search


@final
class _Search:
    """One expression and the topics that match it, as far as they are known."""

    def __init__(self, expression: Any) -> None:  # noqa: ANN401 - RE2 ships no types
        self._full_match = expression.fullmatch
        self._program_steps = expression.programsize
        self._topics: Mapping[str, object] = {}
        """The topics that are evaluated, except for those in `_left`."""
        self._left: list[str] = []
        self._found: set[str] = set()
        self._result: tuple[str, ...] | None = ()
        """The names found, sorted; None while it has to be made."""

    def try_match(self, topics: Mapping[str, object]) -> tuple[str, ...] | None:
        """The matching topics, sorted; None after one slice of work, if more is left.

        An expression must match the whole name. Internal topics never match.
        """
        budget = SLICE_COST
        while True:
            budget = self._evaluate(budget)
            if self._left:
                return None
            if self._topics is topics:
                break
            self._begin(topics)
        if self._result is None:
            self._result = tuple(sorted(self._found))
        return self._result

    def _begin(self, topics: Mapping[str, object]) -> None:
        """Forget topics that are gone; evaluate those that are new."""
        known = self._topics
        self._left = [one for one in topics if one not in known and one not in INTERNAL_TOPICS]
        self._found = {name for name in self._found if name in topics}
        self._topics = topics
        self._result = None

    def _evaluate(self, budget: int) -> int:
        """Evaluate names until the budget is used up; what is left of it."""
        while self._left and budget > 0:
            name = self._left.pop()
            budget -= len(name) * self._program_steps
            if self._full_match(name.encode()) is not None:
                self._found.add(name)
        return budget
