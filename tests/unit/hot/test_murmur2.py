from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)


@settings(max_examples=50)
@given(key=st.binary(max_size=64))
def test_the_hash_is_the_one_of_other_clients(flavour, key):
    assert load(flavour, "murmur2").murmur2(key) == aiokafka_murmur2(key) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "signed"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)]
)
def test_the_hash_is_the_one_of_java(flavour, key, signed):
    assert load(flavour, "murmur2").murmur2(key) == signed & 0xFFFFFFFF


def test_the_partition_uses_the_positive_part_of_the_hash(flavour):
    assert load(flavour, "murmur2").partition_for(b"21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000


def test_a_topic_without_partitions_is_refused(flavour):
    with pytest.raises(ValueError, match="partition"):
        load(flavour, "murmur2").partition_for(b"k", 0)
