from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MIB
from tidemill.spark.source.planning import TASK_BYTES_MAX, TASK_BYTES_MIN, OffsetRange, plan_tasks


def piece(index: int, start: int, stop: int, size_bytes: int = 0) -> OffsetRange:
    return OffsetRange(TopicPartition("t", index), start, stop, "id", size_bytes)


ranges = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 5000), st.integers(0, 300 * MIB)), max_size=8
)


@given(
    ranges=ranges,
    partitions_min=st.none() | st.integers(1, 20),
    records_max=st.none() | st.integers(1, 5000),
)
def test_spark_rule_5_tasks_cover_every_offset_once(ranges, partitions_min, records_max):
    wanted = [piece(i, start, start + n, size) for i, (start, n, size) in enumerate(ranges)]
    tasks = plan_tasks(wanted, partitions_min=partitions_min, partition_records_max=records_max)
    covered = [(r.partition, o) for task in tasks for r in task for o in (r.start, r.stop)]
    for whole in wanted:
        edges = [offset for partition, offset in covered if partition == whole.partition]
        if whole.offset_count:
            assert edges[0] == whole.start
            assert edges[-1] == whole.stop
            assert edges[1:-1:2] == edges[2::2]
        else:
            assert edges == []


def test_spark_rule_5_a_long_range_is_cut_by_bytes():
    tasks = plan_tasks([piece(0, 0, 1000, 3 * TASK_BYTES_MAX)])
    assert [(r.start, r.stop) for (r,) in tasks] == [(0, 333), (333, 666), (666, 1000)]


def test_spark_rule_5_short_ranges_share_a_task():
    assert len(plan_tasks([piece(i, 0, 10, 1000) for i in range(16)])) == 1


def test_spark_rule_5_sharing_ends_where_a_task_has_enough():
    tasks = plan_tasks([piece(i, 0, 10, TASK_BYTES_MIN // 2) for i in range(6)])
    assert [len(task) for task in tasks] == [2, 2, 2]


def test_spark_rule_5_the_same_ranges_give_the_same_tasks_in_any_order():
    wanted = [piece(i, 0, 10 + i, i * MIB) for i in range(9)]
    assert plan_tasks(wanted) == plan_tasks(wanted[::-1])


def test_min_partitions_cuts_in_proportion():
    tasks = plan_tasks([piece(0, 0, 900), piece(1, 0, 100)], partitions_min=10)
    assert [r.partition.partition for (r,) in tasks].count(0) == 9
    assert len(tasks) == 10


def test_fewer_offsets_than_wanted_partitions_give_one_each():
    assert len(plan_tasks([piece(0, 0, 3)], partitions_min=10)) == 3


@pytest.mark.parametrize(("records_max", "count"), [(100, 10), (300, 4), (1000, 1)])
def test_max_records_per_partition_bounds_every_task(records_max, count):
    tasks = plan_tasks([piece(0, 0, 1000)], partition_records_max=records_max)
    assert len(tasks) == count
    assert max(r.offset_count for (r,) in tasks) <= records_max
