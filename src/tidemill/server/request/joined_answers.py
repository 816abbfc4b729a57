"""Joins answers that come at different times into one.

Some requests name many groups. Each group is in a shard, and each shard answers when its state is
committed. A few groups are asked at once; many are asked in slices, so that other requests get
their turns of the loop (S11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tidemill.core.errors import KafkaError
from tidemill.core.loop.awaiting import wait_value
from tidemill.core.loop.deferred import Deferred, join_deferred
from tidemill.core.loop.pacing import Pacer
from tidemill.server.request.context import AnyContext
from tidemill.server.request.handler import Answer
from tidemill.wire.message import Message

__all__ = ["answer_each"]

T = TypeVar("T")
R = TypeVar("R")

ASKED_PER_SLICE = 250
"""About two milliseconds."""


def answer_each(
    context: AnyContext,
    names: Sequence[T],
    ask: Callable[[T], R | Deferred[R]],
    refuse: Callable[[T, KafkaError], R],
    combine: Callable[[list[R]], Message],
) -> Answer:
    """Ask for each name, turn each KafkaError into its refusal, and combine the answers."""

    def attempt(name: T) -> R | Deferred[R]:
        try:
            return ask(name)
        except KafkaError as error:
            context.services.telemetry.count_error(error.code)
            return refuse(name, error)

    if len(names) > ASKED_PER_SLICE:
        return _answer_in_slices(names, attempt, combine)
    return join_deferred(map(attempt, names), combine)


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
    return await wait_value(join_deferred(answers, combine))
