"""Both marks move by agreement of the in-sync replicas only."""

from __future__ import annotations

from tidemill.replication.watermark import agreed_offset


def test_F79_the_mark_is_the_position_of_the_slowest_in_sync_replica():
    assert agreed_offset([9, 5, 7], in_sync_count=3, in_sync_min=1, current=2) == 5


def test_I9_the_mark_never_goes_back():
    assert agreed_offset([3], in_sync_count=1, in_sync_min=1, current=8) == 8


def test_I14_the_mark_stands_still_below_the_minimum_of_in_sync_replicas():
    assert agreed_offset([9], in_sync_count=1, in_sync_min=2, current=4) == 4
