from __future__ import annotations

import pytest

from tidemill.client.producing.partitioners import KeyPartitioner, RandomPartitioner, RoundRobin
from tidemill.core.rng import SeededRng

# Results of kafka-python 3.0.12 for a topic of 1,000,003 partitions; Java gives the same.
KEYS_AND_PARTITIONS = [
    (b"", 645856),
    (b"0", 24483),
    (b"21", 547821),
    (b"foobar", 147095),
    (b"a-little-bit-long-string", 498629),
    (b"user-17", 714933),
    (bytes(range(256)), 135777),
    ("ünïcode".encode(), 913479),
    (b"\xff" * 5, 639677),
]


@pytest.mark.parametrize(("key", "partition"), KEYS_AND_PARTITIONS)
def test_keys_go_where_kafka_python_and_java_put_them(key, partition):
    assert KeyPartitioner(RoundRobin()).partition(key, 1_000_003) == partition


def test_records_without_a_key_take_turns():
    partitioner = KeyPartitioner(RoundRobin())

    assert [partitioner.partition(None, 3) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_taking_turns_survives_a_change_of_the_partition_count():
    turns = RoundRobin()
    for _ in range(3):
        turns.partition(None, 10)

    assert turns.partition(None, 2) == 1


def test_the_random_partitioner_reaches_every_partition():
    partitioner = RandomPartitioner(SeededRng(1))

    assert {partitioner.partition(None, 4) for _ in range(100)} == {0, 1, 2, 3}
