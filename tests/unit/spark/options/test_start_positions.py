from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.spark.options.start_positions import (
    EARLIEST,
    LATEST,
    Place,
    PlaceKind,
    parse_offsets,
    parse_timestamp,
    parse_timestamps,
)

A0 = TopicPartition("a", 0)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        ("group", Place(PlaceKind.GROUP)),
        ("-10m", Place(PlaceKind.AGO, 600_000)),
        ("-100", Place(PlaceKind.BEFORE_END, 100)),
    ],
)
def test_one_place_for_all_partitions(text, place):
    assert parse_offsets(text, "startingOffsets").of(A0) == place


@pytest.mark.parametrize(
    ("number", "place"), [(-2, EARLIEST), (-1, LATEST), (7, Place(PlaceKind.OFFSET, 7))]
)
def test_a_place_for_each_partition(number, place):
    assert parse_offsets(f'{{"a": {{"0": {number}}}}}', "startingOffsets").of(A0) == place


def test_a_partition_without_a_place_is_named():
    places = parse_offsets('{"a": {"0": 7}}', "startingOffsets")
    with pytest.raises(UserError, match="a-1: name every partition"):
        places.of(TopicPartition("a", 1))


@pytest.mark.parametrize("text", ["", "newest", "7", "-", "-10y", '{"a": {"0": -3}}'])
def test_an_invalid_place_is_refused(text):
    with pytest.raises(UserError):
        parse_offsets(text, "startingOffsets")


@pytest.mark.parametrize("text", ["earliest", "group"])
def test_an_end_is_neither_the_beginning_nor_a_group(text):
    with pytest.raises(UserError, match="endingOffsets"):
        parse_offsets(text, "endingOffsets", ending=True)


def test_a_time_is_absolute_or_an_age():
    absolute = parse_timestamp("1700000000000", "startingTimestamp", late_is_latest=False)
    age = parse_timestamp("-90 seconds", "startingTimestamp", late_is_latest=False)
    assert absolute.of(A0) == Place(PlaceKind.TIME, 1_700_000_000_000)
    assert age.of(A0) == Place(PlaceKind.AGO, 90_000)


def test_a_time_that_is_neither_is_refused():
    with pytest.raises(UserError, match="startingTimestamp"):
        parse_timestamp("yesterday", "startingTimestamp", late_is_latest=False)


def test_times_for_each_partition():
    places = parse_timestamps('{"a": {"0": 5}}', "x", late_is_latest=True)
    assert places.of(A0) == Place(PlaceKind.TIME, 5)
