from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.ids import TopicPartition
from tidemill.spark.source.admission import TriggerLimits, admit
from tidemill.spark.stream.time_admission import TIME_STEP_MS, admit_by_time

P = [TopicPartition("t", index) for index in range(4)]
HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS

logs = st.lists(
    st.lists(st.integers(0, NOW_MS), min_size=1, max_size=60).map(sorted), min_size=2, max_size=4
)


def admitted(
    logs: list[list[int]],
    limits: TriggerLimits,
    starts: list[int] | None = None,
    record_bytes: int = 100,
) -> list[int]:
    """The end in each log, which is a list of timestamps that rise."""
    begun = {P[i]: start for i, start in enumerate(starts or [0] * len(logs))}
    ends = {P[i]: len(times) for i, times in enumerate(logs)}
    sizes = {p: (ends[p] - begun[p]) * record_bytes for p in ends}
    heads = {P[i]: times[begun[P[i]]] for i, times in enumerate(logs) if begun[P[i]] < ends[P[i]]}
    steps = admit_by_time(begun, ends, limits, sizes, heads_ms=heads, now_ms=NOW_MS)
    try:
        time_ms = next(steps)
        while True:
            time_ms = steps.send({P[i]: bisect_left(t, time_ms) for i, t in enumerate(logs)})
    except StopIteration as done:
        return [done.value[P[i]] for i in range(len(logs))]


def test_a_partition_that_is_an_hour_behind_is_read_first():
    behind = [i * 1_000 for i in range(3_600)]
    ahead = [HOUR_MS + i * 1_000 for i in range(3_600)]
    first, second = admitted([behind, ahead], TriggerLimits(offsets_max=1_000))
    assert (first, second) == (1_000, 0)
    at_once = admitted([behind, ahead], TriggerLimits(offsets_max=1_000), starts=[3_600, 0])
    assert at_once == [3_600, 1_000]


def test_partitions_of_different_rates_end_at_the_same_time():
    slow = [i * 10_000 for i in range(360)]
    fast = [i * 100 for i in range(36_000)]
    got = admitted([slow, fast], TriggerLimits(offsets_max=5_000))
    assert sum(got) == 5_000
    assert abs(slow[got[0]] - fast[got[1]]) <= TIME_STEP_MS + 10_000


def test_bytes_bound_a_batch_that_ends_at_one_time():
    even, odd = [i * 20_000 for i in range(500)], [i * 20_000 + 10_000 for i in range(500)]
    got = admitted([even, odd], TriggerLimits(bytes_max=10_000))
    assert got == [50, 50]


def test_records_of_one_moment_are_shared_out_by_what_waits():
    got = admitted([[7] * 900, [9] * 100], TriggerLimits(offsets_max=100))
    assert got == [90, 10]


def test_a_time_in_the_future_does_not_keep_a_partition_waiting():
    wrong = [2 * NOW_MS, *(i * 1_000 for i in range(99))]
    assert admitted([wrong, list(range(100))], TriggerLimits(offsets_max=20))[0] > 0


@given(logs=logs, limit=st.integers(1, 300))
def test_the_limit_is_used_up_and_no_partition_is_a_step_ahead_of_what_another_still_has(
    logs, limit
):
    got = admitted(logs, TriggerLimits(offsets_max=limit))
    total = sum(len(times) for times in logs)
    assert min(limit, total) - 1 <= sum(got) <= limit
    read = [times[end - 1] for times, end in zip(logs, got, strict=True) if end > 0]
    left = [times[end] for times, end in zip(logs, got, strict=True) if end < len(times)]
    if read and left:
        assert max(read) - min(left) <= TIME_STEP_MS


@given(logs=logs, bytes_max=st.integers(1, 30_000))
def test_a_batch_by_time_always_makes_progress(logs, bytes_max):
    assert sum(admitted(logs, TriggerLimits(bytes_max=bytes_max))) > 0


@given(logs=logs)
def test_without_a_backlog_a_batch_goes_to_the_ends(logs):
    limits = TriggerLimits(offsets_max=10_000)
    ends = {P[i]: len(times) for i, times in enumerate(logs)}
    begun = dict.fromkeys(ends, 0)
    assert admitted(logs, limits) == list(admit(begun, ends, limits).values())
