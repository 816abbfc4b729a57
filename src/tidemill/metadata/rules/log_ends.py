"""Where the logs of a partition without a leader end, as its replicas have said. Pure.

If no replica is certain to have everything, the one with the longest log should lead. An answer
counts for one life of a broker and for one leader epoch of the partition: nobody leads in it, so
nothing is appended or cut after the answer. A broker that was asked and has not answered for some
time is *silent*, which is neither an answer nor a death: `election.py` says what that means.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, final
from uuid import UUID

from tidemill.core.limits import LOG_END_WAIT_S
from tidemill.metadata.image.metadata_image import BrokerImage, PartitionImage

__all__ = ["NOTHING_TOLD", "LogEnd", "LogEndQuestion", "LogEnds", "ToldEnds"]


@final
class LogEnd(NamedTuple):
    """The end of one log; of two, the greater one belongs to the longer log."""

    last_epoch: int
    """The leader epoch of the last record."""
    end_offset: int

    @property
    def is_of_nothing(self) -> bool:
        """No record was ever in it: it may have been made in the place of a log that is lost."""
        return self.end_offset == 0


@final
class LogEndQuestion(NamedTuple):
    """About one replica. Only this life of its broker can answer, and only in this epoch."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    broker_id: int
    broker_epoch: int


@final
@dataclass(frozen=True, slots=True)
class LogEnds:
    """What is known of the logs of one partition, by broker."""

    ends: Mapping[int, LogEnd] = field(default_factory=dict)
    silent: Collection[int] = frozenset()


NOTHING_TOLD = LogEnds()


@final
@dataclass(frozen=True, slots=True)
class _Asked:
    """One replica that was asked, and what it has said so far."""

    broker_epoch: int
    since: float
    end: LogEnd | None = None


@final
class _Survey(NamedTuple):
    """The replicas of one partition that were asked in one leader epoch, by broker."""

    leader_epoch: int
    asked: dict[int, _Asked]


@final
class ToldEnds:
    """The answers of all partitions that are asked about; `keep_only` bounds them."""

    def __init__(self) -> None:
        self._surveys: dict[tuple[UUID, int], _Survey] = {}

    def ask(self, question: LogEndQuestion, now: float) -> None:
        """The question is on its way, perhaps not for the first time."""
        place = question.topic_id, question.partition
        survey = self._surveys.get(place)
        if survey is None or survey.leader_epoch != question.leader_epoch:
            survey = self._surveys[place] = _Survey(question.leader_epoch, {})
        known = survey.asked.get(question.broker_id)
        if known is None or known.broker_epoch != question.broker_epoch:
            survey.asked[question.broker_id] = _Asked(question.broker_epoch, now)

    def answer(self, question: LogEndQuestion, end: LogEnd) -> None:
        """An answer to a question that is not asked any more has no effect."""
        survey = self._surveys.get((question.topic_id, question.partition))
        if survey is None or survey.leader_epoch != question.leader_epoch:
            return
        known = survey.asked.get(question.broker_id)
        if known is not None and known.broker_epoch == question.broker_epoch:
            survey.asked[question.broker_id] = replace(known, end=end)

    def knows(self, question: LogEndQuestion) -> bool:
        """Whether it was answered."""
        survey = self._surveys.get((question.topic_id, question.partition))
        if survey is None or survey.leader_epoch != question.leader_epoch:
            return False
        known = survey.asked.get(question.broker_id)
        if known is None or known.broker_epoch != question.broker_epoch:
            return False
        return known.end is not None

    def of(
        self,
        topic_id: UUID,
        index: int,
        partition: PartitionImage,
        brokers: Mapping[int, BrokerImage],
        now: float,
    ) -> LogEnds:
        """What counts now: of the present lives of brokers, in the present leader epoch."""
        survey = self._surveys.get((topic_id, index))
        if survey is None or survey.leader_epoch != partition.leader_epoch:
            return NOTHING_TOLD
        alive = {
            broker_id: one
            for broker_id, one in survey.asked.items()
            if broker_id in brokers and brokers[broker_id].epoch == one.broker_epoch
        }
        return LogEnds(
            {broker_id: one.end for broker_id, one in alive.items() if one.end is not None},
            frozenset(
                broker_id
                for broker_id, one in alive.items()
                if one.end is None and now - one.since >= LOG_END_WAIT_S
            ),
        )

    def keep_only(self, places: Collection[tuple[UUID, int]]) -> None:
        """Forget what was said of all other partitions."""
        self._surveys = {place: self._surveys[place] for place in places if place in self._surveys}
