from __future__ import annotations

import asyncio

from tests.unit.server.one_broker import value_of
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred, join_deferred
from tidemill.core.telemetry import Telemetry
from tidemill.server.request.joined_answers import ASKED_PER_SLICE, answer_each


class Context:
    """The part of a request's context that joining uses."""

    class Services:
        telemetry = Telemetry()

    services = Services()


def test_answers_that_are_all_there_are_combined_at_once():
    assert join_deferred([1, 2, 3], sum) == 6
    assert join_deferred([], list) == []


def test_the_joined_answer_comes_with_the_last_one_in_the_order_of_asking():
    first, second = Deferred(), Deferred()
    joint = join_deferred([first, "b", second], "".join)
    second.resolve("c")
    assert not joint.resolved
    first.resolve("a")
    assert value_of(joint) == "abc"


def test_answers_that_came_before_they_were_joined_do_not_wait():
    early = Deferred()
    early.resolve("a")
    assert join_deferred([early, "b"], "".join) == "ab"


def test_a_refused_name_does_not_keep_the_others_from_their_answers():
    def ask(name):
        if name == "bad":
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return name

    joint = answer_each(Context, ["x", "bad"], ask, lambda name, error: error.code, list)
    assert joint == ["x", ErrorCode.GROUP_ID_NOT_FOUND]


def test_S11_many_names_are_asked_for_in_slices(run):
    names = range(2 * ASKED_PER_SLICE + 1)
    waiting = Deferred()
    asked = []

    def ask(name):
        asked.append(name)
        return waiting if name == 0 else name

    async def scenario():
        joint = answer_each(Context, names, ask, lambda name, error: None, list)
        task = asyncio.ensure_future(joint)
        await asyncio.sleep(0)
        assert len(asked) == ASKED_PER_SLICE
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(asked) == len(names)
        waiting.resolve(0)
        return await task

    assert run(scenario()) == list(names)


def test_a_late_answer_for_a_lost_connection_is_dropped(run):
    waiting = Deferred()

    async def scenario():
        names = range(ASKED_PER_SLICE + 1)
        joint = answer_each(
            Context,
            names,
            lambda name: waiting if name == 0 else name,
            lambda name, error: None,
            list,
        )
        task = asyncio.ensure_future(joint)
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        waiting.resolve(0)
        return task.cancelled()

    assert run(scenario())
