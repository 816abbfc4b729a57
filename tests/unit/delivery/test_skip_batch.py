"""The batch that moves a position over nothing."""

from __future__ import annotations

from tidemill.delivery.skip_batch import skip_batch
from tidemill.wire.batch import read_header, verify
from tidemill.wire.records import iter_records


def test_a_skip_batch_is_one_whole_commit_record_of_no_producer():
    data = memoryview(skip_batch(41, leader_epoch=7))
    header = read_header(data)
    verify(data, header)
    assert header.is_control
    assert not header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.base_offset, header.next_offset) == (41, 42)
    assert header.partition_leader_epoch == 7
    assert header.size_bytes == len(data)
    (record,) = iter_records(data)
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x00"
