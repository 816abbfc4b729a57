"""Asks replicas where their logs end, while partitions wait for that to have a leader.

The controller decides with the answers that it has (`election.py`); this finds out what they are.
Asking changes nothing anywhere, so a question whose answer does not come is asked again, for as
long as the partition waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import final
from uuid import UUID

from tidemill.core.clock import Clock
from tidemill.core.errors import KafkaError
from tidemill.core.ids import NO_LEADER, TopicPartition
from tidemill.core.limits import LOG_END_QUESTIONS_MAX
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.features.feature_levels import TELLS_LOG_ENDS, TIDEMILL_VERSION
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    Delta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.rules.decisions import live_brokers, log_end_questions
from tidemill.metadata.rules.log_ends import LogEnd, LogEndQuestion, LogEnds, ToldEnds

__all__ = ["AskLogEnds", "LogEndSurvey"]

log = logging.getLogger(__name__)

AskLogEnds = Callable[[int, Collection[LogEndQuestion]], Awaitable[Mapping[LogEndQuestion, LogEnd]]]
"""Asks one broker; what it has answered. KafkaError: nothing, for now. It ends within seconds."""

RETRY_S = 0.5
PARTITIONS_PER_SLICE = 250


@final
class LogEndSurvey:
    """The questions that are open, and what has been answered."""

    def __init__(self, image: Callable[[], MetadataImage], clock: Clock) -> None:
        self._image = image
        self._clock = clock
        self._ends = ToldEnds()
        self._leaderless: set[str] = set()
        """Topics with a partition that has no leader."""
        self._known: dict[tuple[UUID, int], LogEnds] = {}
        """What was known of their partitions when this was told last."""
        self._unable: dict[int, int] = {}
        """Brokers whose software cannot answer, with the epoch in which the log was told so."""
        self._wakeup = asyncio.Event()
        self.is_wanted: Callable[[], bool] = lambda: False
        """Whether this broker is the controller."""
        self.ask: AskLogEnds | None = None
        """None: brokers cannot be asked."""
        self.told: Callable[[Collection[str]], None] = lambda _names: None
        """Called with the names of topics of which more is known than before."""

    def follow(self, delta: Delta) -> None:
        self._leaderless.difference_update(gone.name for gone in delta.topics_deleted)
        for name in delta.topics_changed:
            is_led = all(one.leader != NO_LEADER for one in delta.after.topics[name].own_partitions)
            (self._leaderless.discard if is_led else self._leaderless.add)(name)
        if self._leaderless:
            self._wakeup.set()

    def of(self, topic_id: UUID, index: int, partition: PartitionImage) -> LogEnds:
        """What the replicas of a partition have said."""
        now = self._clock.monotonic()
        return self._ends.of(topic_id, index, partition, self._image().brokers, now)

    # --- asking ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask while partitions wait, until cancelled."""
        while True:
            await self._wait()
            await self.look()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(RETRY_S if self._leaderless else None):
                await self._wakeup.wait()
        except TimeoutError:
            pass
        self._wakeup.clear()

    async def look(self) -> None:
        """Ask what is open; whoever can decide with the answers is told of them."""
        image = self._image()
        if not self.is_wanted():
            self._ends, self._known = ToldEnds(), {}
            return
        electable = live_brokers(image).electable
        questions: list[LogEndQuestion] = []
        places: set[tuple[UUID, int]] = set()
        async for topic, index in self._waiting(image):
            places.add((topic.topic_id, index))
            questions += log_end_questions(image, topic, index, electable)
        self._ends.keep_only(places)
        await self._ask_all(questions)
        await self._tell_news()

    async def ask_about(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask once about partitions that somebody wants to be led by whoever can."""
        if not self.is_wanted():
            return
        image, pacer = self._image(), Pacer(PARTITIONS_PER_SLICE)
        electable = live_brokers(image).electable
        questions: list[LogEndQuestion] = []
        for name, index in partitions:
            await pacer.step()
            topic = image.topic(name)
            if topic is not None and 0 <= index < len(topic.own_partitions):
                questions += log_end_questions(image, topic, index, electable, unclean=True)
        await self._ask_all(questions)

    async def _waiting(self, image: MetadataImage) -> AsyncIterator[tuple[TopicImage, int]]:
        """The partitions without a leader."""
        pacer = Pacer(PARTITIONS_PER_SLICE)
        for name in sorted(self._leaderless & image.topics.keys()):
            for index, partition in enumerate(image.topics[name].own_partitions):
                await pacer.step()
                if partition.leader == NO_LEADER:
                    yield image.topics[name], index

    async def _ask_all(self, questions: Iterable[LogEndQuestion]) -> None:
        by_broker: dict[int, list[LogEndQuestion]] = defaultdict(list)
        for question in questions:
            if not self._ends.knows(question):
                by_broker[question.broker_id].append(question)
        await asyncio.gather(*(self._ask_broker(one, by_broker[one]) for one in sorted(by_broker)))

    async def _ask_broker(self, broker_id: int, questions: Sequence[LogEndQuestion]) -> None:
        """Ask in one request after the other, until one is not answered.

        The rest counts as asked then: it is the broker that is silent, whatever it is asked.
        """
        answers = True
        for first in range(0, len(questions), LOG_END_QUESTIONS_MAX):
            some = questions[first : first + LOG_END_QUESTIONS_MAX]
            now = self._clock.monotonic()
            for question in some:
                self._ends.ask(question, now)
            answers = answers and await self._ask_once(broker_id, some)

    async def _ask_once(self, broker_id: int, questions: Collection[LogEndQuestion]) -> bool:
        """Whether the broker has answered, be it that it does not know."""
        broker = self._image().brokers.get(broker_id)
        if self.ask is None or broker is None:
            return False
        if not broker.software.supports(TIDEMILL_VERSION, TELLS_LOG_ENDS):
            self._report_unable(broker)
            return False
        try:
            answers = await self.ask(broker_id, questions)
        except KafkaError as error:
            log.info("broker %d does not tell where its logs end: %s", broker_id, error)
            return False
        for question, end in answers.items():
            self._ends.answer(question, end)
        if answers:
            await self._tell_news()
        return True

    def _report_unable(self, broker: BrokerImage) -> None:
        """Say once of each life of a broker that it counts as silent."""
        if self._unable.get(broker.broker_id) != broker.epoch:
            self._unable[broker.broker_id] = broker.epoch
            log.warning(
                "broker %d runs %s and cannot tell where its logs end: upgrade it",
                broker.broker_id,
                broker.software.shown_version,
            )

    async def _tell_news(self) -> None:
        """Also silence is news: an election may go on without whoever is silent."""
        image = self._image()
        known: dict[tuple[UUID, int], LogEnds] = {}
        names: set[str] = set()
        async for topic, index in self._waiting(image):
            place = topic.topic_id, index
            known[place] = self.of(topic.topic_id, index, topic.partitions[index])
            if known[place] != self._known.get(place, LogEnds()):
                names.add(topic.name)
        self._known = known
        if names:
            self.told(names)
