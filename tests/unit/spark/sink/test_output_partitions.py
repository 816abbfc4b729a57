from __future__ import annotations

import pyarrow as pa

from tidemill.hot.murmur2 import partition_for
from tidemill.spark.sink.output_partitions import key_hashes

KEYS = [b"%d" % number for number in range(50)]


def test_the_remainder_of_a_hash_is_the_partition_that_java_chooses():
    hashes = key_hashes(pa.array(KEYS, pa.binary())).to_pylist()
    for count in (1, 2, 7, 1000):
        assert [found % count for found in hashes] == [partition_for(key, count) for key in KEYS]


def test_no_key_has_no_hash_and_an_empty_key_has_one():
    hashes = key_hashes(pa.array([None, b"k", b"", None], pa.binary())).to_pylist()
    assert hashes[0] is hashes[3] is None
    assert [found % 5 for found in hashes[1:3]] == [partition_for(b"k", 5), partition_for(b"", 5)]


def test_a_part_of_a_column_has_the_hashes_of_that_part():
    keys = pa.array([None, *KEYS], pa.binary())
    assert key_hashes(keys[3:7]).to_pylist() == key_hashes(keys).to_pylist()[3:7]
