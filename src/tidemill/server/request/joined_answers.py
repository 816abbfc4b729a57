"""One answer made of several that come at different times.

Some requests name many groups, each in a shard of its own, and each shard answers when what it
knows is committed. A few groups are asked at once; many are asked in slices, so that others get
their turns of the loop (S11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, final

from tidemill.core.errors import KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.server.limits.pacing import Pacer
from tidemill.server.request.context import RequestContext
from tidemill.server.request.handler import Answer
from tidemill.wire.message import Message

__all__ = ["answer_each", "join_answers"]

T = TypeVar("T")
R = TypeVar("R")
J = TypeVar("J")

ASKED_PER_SLICE = 250
"""About two milliseconds."""


def answer_each(
    context: RequestContext,
    names: Sequence[T],
    ask: Callable[[T], R | Deferred[R]],
    refuse: Callable[[T, KafkaError], R],
    combine: Callable[[list[R]], Message],
) -> Answer:
    """Ask for each name, turn each KafkaError into its refusal, and combine what came."""

    def attempt(name: T) -> R | Deferred[R]:
        try:
            return ask(name)
        except KafkaError as error:
            context.services.telemetry.count_error(error.code)
            return refuse(name, error)

    if len(names) > ASKED_PER_SLICE:
        return _answer_in_slices(names, attempt, combine)
    return join_answers(map(attempt, names), combine)


def join_answers(
    answers: Iterable[R | Deferred[R]], combine: Callable[[list[R]], J]
) -> J | Deferred[J]:
    """What `combine` makes of all answers: now if all are there, else with the last one."""
    joint = _Joint(combine)
    for answer in answers:
        joint.add(answer)
    return joint.close()


@final
class _Joint(Generic[R, J]):
    """The answers that have come, and how many have not."""

    __slots__ = ("_combine", "_deferred", "_missing", "_values")

    def __init__(self, combine: Callable[[list[R]], J]) -> None:
        self._combine = combine
        self._values: list[Any] = []
        self._missing = 1
        """One more than there are, until all are known."""
        self._deferred: Deferred[J] = Deferred()

    def add(self, answer: R | Deferred[R]) -> None:
        index = len(self._values)
        self._values.append(answer)
        if isinstance(answer, Deferred):
            self._missing += 1
            answer.then(lambda value: self._came(index, value))

    def close(self) -> J | Deferred[J]:
        self._missing -= 1
        return self._combine(self._values) if self._missing == 0 else self._deferred

    def _came(self, index: int, value: R) -> None:
        self._values[index] = value
        self._missing -= 1
        if self._missing == 0:
            self._deferred.resolve(self._combine(self._values))


async def _answer_in_slices(
    names: Sequence[T],
    ask: Callable[[T], R | Deferred[R]],
    combine: Callable[[list[R]], Message],
) -> Message:
    pacer = Pacer(ASKED_PER_SLICE)
    answers: list[R | Deferred[R]] = []
    for name in names:
        await pacer.step()
        answers.append(ask(name))
    joint = join_answers(answers, combine)
    return await _value_of(joint) if isinstance(joint, Deferred) else joint


async def _value_of(answer: Deferred[Message]) -> Message:
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def settle(value: Message) -> None:
        if not future.done():  # the connection may have gone
            future.set_result(value)

    answer.then(settle)
    return await future
