from __future__ import annotations

from tidemill.client.consuming.consumer import FetchedBatches
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import KIB
from tidemill.spark.source.log_sizes import LogSizes
from tidemill.wire.batch import read_header
from tidemill.wire.records import Record, build_batch

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def fetched(partition: TopicPartition, at: int, value_bytes: int, count: int = 1) -> FetchedBatches:
    records = [Record(bytes(value_bytes), timestamp=0) for _ in range(count)]
    view = memoryview(build_batch(records, base_offset=at))
    return FetchedBatches(partition, [(view, read_header(view))], at, at + count, [])


def size(sizes: LogSizes, run, start: int, stop: int) -> int:
    """Without a cluster: only what is known is used."""
    assert sizes.to_sample({P: (start, stop)}) == {}
    return run(sizes.estimate(None, {P: (start, stop)}))[P]


def test_a_few_large_records_are_sampled():
    assert LogSizes().to_sample({P: (0, 100)}) == {P: 0}


def test_the_start_of_a_range_that_was_fetched_is_not_fetched_again(run):
    sizes = LogSizes()
    sizes.observe(fetched(P, 7, 100 * KIB))
    assert 10_000 * KIB <= size(sizes, run, 7, 107) <= 10_100 * KIB


def test_a_range_that_is_small_by_the_running_estimate_is_not_sampled(run):
    sizes = LogSizes()
    sizes.observe(fetched(P, 0, 1000, count=10))
    assert 100_000 <= size(sizes, run, 500, 600) <= 110_000
    assert sizes.to_sample({P: (500, 5_000)}) == {P: 500}


def test_a_partition_that_was_never_fetched_is_sampled_beside_one_that_was():
    sizes = LogSizes()
    sizes.observe(fetched(P, 7, 100))
    assert sizes.to_sample({P: (7, 9), Q: (3, 4)}) == {Q: 3}


def test_the_running_estimate_moves_halfway_to_each_measurement(run):
    sizes = LogSizes()
    sizes.observe(fetched(P, 0, 1_000, count=100))
    sizes.observe(fetched(P, 100, 3_000, count=100))
    assert 19_500 <= size(sizes, run, 300, 310) <= 20_500


def test_a_partition_that_gave_no_sample_is_taken_for_one_like_the_others(run, monkeypatch):
    sizes = LogSizes()
    sizes.observe(fetched(P, 0, 50_000))

    async def in_vain(cluster, starts) -> None:
        assert starts == {Q: 3}

    monkeypatch.setattr(sizes, "_sample", in_vain)
    assert run(sizes.estimate(None, {P: (0, 100), Q: (3, 103)}))[Q] > 5_000_000
