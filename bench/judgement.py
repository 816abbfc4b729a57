"""The evaluation of samples: their order, medians, ratios, and the bars they must reach.

Everything here is a pure function of numbers. Two subjects, A and B, are sampled in rounds of
A B B A: a steady change over a round (a warming machine, a filling disk) affects both equally. A
round gives one ratio, the mean of its two A over the mean of its two B; a row's ratio is the median
of its rounds' ratios.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

__all__ = [
    "Bar",
    "Held",
    "Outcome",
    "Sample",
    "Verdict",
    "alternate",
    "column",
    "held_value",
    "histogram_quantile",
    "judge",
    "ratio",
    "round_ratios",
]

Sample = Mapping[str, float]
"""The measures of one run, by name."""

SAMPLES_PER_ROUND = 2


@final
class Held(Enum):
    """The number that is compared with a bar, and its notation."""

    VALUE = "{goal} {limit:g} {unit}"
    RATIO = "{goal} {limit:g}x"
    DIFFERENCE = "{goal} +{limit:g} {unit}"


@final
@dataclass(frozen=True, slots=True)
class Bar:
    """A promise: at least (`>=`) or at most (`<=`) `limit`."""

    goal: str
    limit: float
    held: Held = Held.RATIO

    def __post_init__(self) -> None:
        assert self.goal in _GOALS

    def is_met(self, value: float) -> bool:
        return _GOALS[self.goal](value, self.limit)

    def text(self, unit: str) -> str:
        goal = {">=": "≥", "<=": "≤"}[self.goal]
        return self.held.value.format(goal=goal, limit=self.limit, unit=unit)


_GOALS: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


@final
class Verdict(Enum):
    """Whether an outcome reaches its bar; OPEN if there is no bar or nothing to compare with."""

    MET = "met"
    MISSED = "MISSED"
    OPEN = "-"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One line of the table: a measure of one row, with every sample of it."""

    row: str
    title: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float] = ()
    against: str = ""
    """The name of the subject of `theirs`."""
    bar: Bar | None = None
    cpu_ours: Sequence[float] = ()
    """CPU seconds of the broker per million records (or requests, if the row counts requests)."""
    cpu_theirs: Sequence[float] = ()
    note: str = ""

    def __post_init__(self) -> None:
        assert self.ours, self.title


def alternate(
    rounds: int, ours: Callable[[], Sample], theirs: Callable[[], Sample] | None
) -> tuple[list[Sample], list[Sample]]:
    """Run both as A B B A for some rounds; without the second, run the first as often."""
    of_ours: list[Sample] = []
    of_theirs: list[Sample] = []
    for _ in range(rounds):
        of_ours.append(ours())
        if theirs is not None:
            of_theirs += [theirs() for _ in range(SAMPLES_PER_ROUND)]
        of_ours.append(ours())
    return of_ours, of_theirs


def column(samples: Sequence[Sample], name: str, scale: float = 1.0) -> tuple[float, ...]:
    """One measure of every sample that has it."""
    return tuple(sample[name] * scale for sample in samples if name in sample)


def round_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """One ratio per round; samples that do not form complete rounds count as one round."""
    if len(ours) != len(theirs) or len(ours) % SAMPLES_PER_ROUND:
        return [statistics.median(ours) / statistics.median(theirs)]
    return [
        sum(ours[i : i + SAMPLES_PER_ROUND]) / sum(theirs[i : i + SAMPLES_PER_ROUND])
        for i in range(0, len(ours), SAMPLES_PER_ROUND)
    ]


def ratio(outcome: Outcome) -> float | None:
    """The median ratio of the rounds; None without a subject to compare with."""
    if not outcome.theirs or not all(outcome.theirs):
        return None
    return statistics.median(round_ratios(outcome.ours, outcome.theirs))


def held_value(outcome: Outcome) -> float | None:
    """The number that is compared with the bar."""
    kind = Held.VALUE if outcome.bar is None else outcome.bar.held
    if kind is Held.VALUE:
        return statistics.median(outcome.ours)
    if kind is Held.RATIO:
        return ratio(outcome)
    if not outcome.theirs:
        return None
    return statistics.median(outcome.ours) - statistics.median(outcome.theirs)


def judge(outcome: Outcome) -> Verdict:
    """Compare the outcome with its bar."""
    value = held_value(outcome)
    if outcome.bar is None or value is None:
        return Verdict.OPEN
    return Verdict.MET if outcome.bar.is_met(value) else Verdict.MISSED


def histogram_quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The bound of the first bucket (bound -> count up to it) that covers `share` of all.

    This is an upper bound of the quantile, as exact as a histogram allows.
    """
    total = max(buckets.values(), default=0)  # the last bucket counts all
    if not total:
        return None
    return next(bound for bound in sorted(buckets) if buckets[bound] >= share * total)
