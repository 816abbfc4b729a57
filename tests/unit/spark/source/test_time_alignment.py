from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from tests.support.coroutines import run
from tidemill.core.ids import TopicPartition
from tidemill.spark.source.admission import waiting_offsets
from tidemill.spark.source.time_alignment import admit_by_time

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
P = [TopicPartition("t", index) for index in range(3)]


class Logs:
    """Sorted timestamps for each partition; an offset is an index."""

    def __init__(self, *times_ms: list[int]) -> None:
        self.times_ms = dict(zip(P, times_ms, strict=False))
        self.asked = 0

    async def offsets_at(self, time_ms: int) -> dict[TopicPartition, int]:
        self.asked += 1
        found = {p: bisect_left(times, time_ms) for p, times in self.times_ms.items()}
        return {p: at if at < len(self.times_ms[p]) else -1 for p, at in found.items()}

    def batches(self, offsets_max: int) -> list[dict[TopicPartition, int]]:
        """The ends of all batches of a backfill."""
        ends = {p: len(times) for p, times in self.times_ms.items()}
        position, first_ms, made = dict.fromkeys(ends, 0), START_MS, []
        while waiting_offsets(position, ends):
            if waiting_offsets(position, ends) <= offsets_max:
                position = ends
            else:
                batch = run(
                    admit_by_time(
                        self.offsets_at,
                        position,
                        ends,
                        offsets_max=offsets_max,
                        times_ms=range(first_ms, START_MS + 24 * HOUR_MS),
                    )
                )
                assert all(position[p] <= batch.ends[p] <= ends[p] for p in ends)
                taken = waiting_offsets(position, batch.ends)
                assert 0 < taken <= offsets_max
                position, first_ms = batch.ends, batch.time_ms
            made.append(position)
        return made


def test_two_partitions_an_hour_apart_are_read_one_after_the_other():
    times = [START_MS + n * 1_000 for n in range(3_600)]
    logs = Logs(times, [time + HOUR_MS for time in times])

    made = logs.batches(offsets_max=900)

    assert [(end[P[0]], end[P[1]]) for end in made[:4]] == [
        (900, 0),
        (1800, 0),
        (2700, 0),
        (3600, 0),
    ]
    assert len(made) == 8
    assert logs.asked < 40 * len(made)


@given(
    st.lists(
        st.lists(st.integers(0, 20 * HOUR_MS), max_size=60).map(sorted), min_size=1, max_size=3
    ),
    st.integers(1, 50),
)
def test_no_batch_is_more_than_a_second_ahead_of_what_is_left(times, offsets_max):
    logs = Logs(*([START_MS + time for time in each] for each in times))

    for end in logs.batches(offsets_max):
        read = [logs.times_ms[p][at - 1] for p, at in end.items() if at]
        left = [logs.times_ms[p][at] for p, at in end.items() if at < len(logs.times_ms[p])]
        assert max(read, default=0) <= min(left, default=max(read, default=0)) + 1_000


def test_a_second_with_more_records_than_the_limit_is_divided():
    logs = Logs([START_MS] * 100, [START_MS + 5] * 300)

    assert logs.batches(offsets_max=40)[0] == {P[0]: 10, P[1]: 30}
