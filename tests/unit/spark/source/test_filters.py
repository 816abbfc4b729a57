from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
)

from tidemill.core.ids import TopicPartition
from tidemill.spark.source.filters import ReadBounds


def test_filters_on_offsets_bound_a_range_from_both_sides():
    offset = ("offset",)
    filters = [GreaterThan(offset, 4), GreaterThanOrEqual(offset, 7), LessThan(offset, 20)]
    bounds = ReadBounds.from_filters([*filters, LessThanOrEqual(offset, 11)])
    assert bounds.clip(0, 100) == (7, 12)
    assert bounds.clip(9, 10) == (9, 10)
    assert bounds.clip(50, 100) == (50, 50)


def test_an_offset_may_be_one_or_one_of_several():
    assert ReadBounds.from_filters([EqualTo(("offset",), 5)]).clip(0, 100) == (5, 6)
    assert ReadBounds.from_filters([In(("offset",), (9, 5))]).clip(0, 100) == (5, 10)


def test_null_in_a_list_matches_no_row():
    bounds = ReadBounds.from_filters(
        [In(("partition",), (0, None)), In(("offset",), (None, 7, 3)), In(("topic",), ("t", None))]
    )
    assert bounds.partitions == {0}
    assert bounds.topics == {"t"}
    assert bounds.clip(0, 100) == (3, 8)


@pytest.mark.parametrize("column", ["topic", "partition", "offset", "timestamp"])
@pytest.mark.parametrize("kind", [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan])
def test_a_comparison_with_null_is_left_to_spark(kind, column):
    assert not ReadBounds.from_filters([kind((column,), None)]).is_active
    assert not ReadBounds.from_filters([In((column,), (None,))]).is_active


def test_filters_on_topic_and_partition_leave_partitions_out():
    bounds = ReadBounds.from_filters([In(("topic",), ("a", "b")), EqualTo(("partition",), 1)])
    assert bounds.may_hold(TopicPartition("a", 1))
    assert not bounds.may_hold(TopicPartition("a", 0))
    assert not bounds.may_hold(TopicPartition("c", 1))


def test_a_time_bounds_from_below_only():
    noon = datetime(2024, 5, 17, 12, tzinfo=UTC)
    at_ms = int(noon.timestamp() * 1000)
    assert ReadBounds.from_filters([GreaterThan(("timestamp",), noon)]).time_low_ms == at_ms - 1
    assert ReadBounds.from_filters([LessThan(("timestamp",), noon)]) == ReadBounds()


def test_a_time_without_a_zone_bounds_nothing():
    noon = datetime(2024, 5, 17, 12)
    assert ReadBounds.from_filters([GreaterThan(("timestamp",), noon)]) == ReadBounds()


def test_filters_of_other_kinds_are_left_to_spark():
    assert not ReadBounds.from_filters(
        [StringContains(("topic",), "a"), EqualTo(("value",), b"x")]
    ).is_active
