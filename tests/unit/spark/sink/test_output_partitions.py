from __future__ import annotations

import pyarrow as pa
import pytest

from tidemill.core.errors import UserError
from tidemill.hot.murmur2 import partition_for
from tidemill.spark.sink.output_partitions import _chooser, partitions_of

KEYS = [b"%d" % number for number in range(50)]


def absent(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)


def test_a_key_goes_where_java_puts_it():
    values = absent(50, pa.binary())
    chosen = partitions_of(7, absent(50, pa.int32()), pa.array(KEYS, pa.binary()), values)
    assert chosen.to_pylist() == [partition_for(key, 7) for key in KEYS]


def test_a_row_without_a_key_goes_by_its_value_and_one_without_both_to_the_first_partition():
    keys = pa.array([None, b"k", None], pa.binary())
    values = pa.array([b"v", b"v", None], pa.binary())
    chosen = partitions_of(5, absent(3, pa.int32()), keys, values)
    assert chosen.to_pylist() == [partition_for(b"v", 5), partition_for(b"k", 5), 0]


def test_the_partition_that_a_row_asks_for_is_kept():
    asked = pa.array([3, None], pa.int32())
    keys = pa.array([b"k", b"k"], pa.binary())
    chosen = partitions_of(5, asked, keys, keys)
    assert chosen.to_pylist() == [3, partition_for(b"k", 5)]


def test_the_topics_of_a_chunk_have_their_own_numbers_of_partitions():
    choose = _chooser({"a": 1, "b": 6})
    topics = pa.array(["b", "a"] * 25)
    keys = pa.array(KEYS, pa.binary())
    chosen = choose(topics, absent(50, pa.int32()), keys, keys).to_pylist()
    assert chosen[1::2] == [0] * 25
    assert chosen[::2] == [partition_for(key, 6) for key in KEYS[::2]]


@pytest.mark.parametrize("topic", [None, "c"])
def test_a_row_that_names_no_known_topic_is_refused(topic):
    column = pa.array([topic], pa.string())
    with pytest.raises(UserError, match="topic"):
        _chooser({"a": 1})(column, absent(1, pa.int32()), column, column)
