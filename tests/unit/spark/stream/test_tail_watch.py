from __future__ import annotations

from tidemill.client.consuming.consumer import FetchedBatches
from tidemill.core.ids import TopicPartition
from tidemill.spark.stream.tail_watch import TailWatch

P = TopicPartition("t", 0)
NEWS = FetchedBatches(P, [], 5, 8, [])


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s


class ScriptedConsumer:
    """Gives the scripted answers at once, and then waits in vain."""

    def __init__(self, clock: Clock, *answers: list[FetchedBatches]) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.polls = 0
        self._clock = clock
        self._answers = list(answers)

    async def poll_batches(self, timeout_s: float) -> list[FetchedBatches]:
        self.polls += 1
        if self._answers:
            return self._answers.pop(0)
        self._clock.now_s += timeout_s
        return []


def test_an_empty_answer_from_the_last_trigger_does_not_hide_what_came_since(run):
    clock = Clock()
    consumer = ScriptedConsumer(clock, [], [NEWS])
    assert run(TailWatch(consumer, clock).wait({P: 5}, 0.2)) == [NEWS]
    assert consumer.positions == {P: 5}


def test_a_wait_in_vain_ends_when_its_time_is_over(run):
    clock = Clock()
    consumer = ScriptedConsumer(clock, [], [])
    assert run(TailWatch(consumer, clock).wait({P: 5}, 0.2)) == []
    assert clock.now_s == 100.2
    assert consumer.polls <= 4


def test_without_partitions_the_broker_is_not_asked(run):
    clock = Clock()
    consumer = ScriptedConsumer(clock, [NEWS])
    assert run(TailWatch(consumer, clock).wait({}, 0.0)) == []
    assert consumer.polls == 0
