"""Two followers that are told of the same append share one read of the log."""

from __future__ import annotations

import pytest

from tests.support.partitions import OWN, SECOND, append, image, leader
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.replication.serving.shared_reads import SharedReads
from tidemill.storage.log.interface import LogSlice


def read(reads: SharedReads, of: Partition, offset: int = 0, max_bytes: int = 1 << 20) -> LogSlice:
    return reads.read(of, offset, max_bytes=max_bytes, at_least_one=True)


def filled(count: int = 1) -> Partition:
    made = leader(isr=(OWN, SECOND))
    for _ in range(count):
        append(made)
    return made


def test_the_second_read_of_the_same_records_is_the_first():
    reads, led = SharedReads(), filled()
    assert read(reads, led) is read(reads, led)


def test_another_offset_size_or_end_is_read_again():
    reads, led = SharedReads(), filled(2)
    first = read(reads, led)
    assert read(reads, led, offset=1) is not first
    assert read(reads, led, max_bytes=1) is not first
    again = read(reads, led)
    append(led)
    assert read(reads, led).size_bytes > again.size_bytes


def test_I10_what_was_read_in_another_epoch_is_not_sent():
    reads, led = SharedReads(), filled()
    first = read(reads, led)
    led.become_leader(image(epoch=led.leader_epoch + 1, isr=(OWN, SECOND)), now=0.0)
    assert read(reads, led) is not first


def test_long_reads_are_not_kept_and_few_short_ones():
    reads, led, other = SharedReads(reads_max=1), filled(), filled()
    first = read(reads, led)
    read(reads, other)
    assert read(reads, led) is not first
    fresh = SharedReads(read_bytes_max=1)
    assert read(fresh, led) is not read(fresh, led)


def test_a_refusal_is_not_kept():
    reads, led = SharedReads(), filled()
    with pytest.raises(KafkaError) as caught:
        read(reads, led, offset=9)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
