"""Who joins the in-sync set has deleted what clients were told is gone (I9)."""

from __future__ import annotations

from tests.support.partitions import OWN, SECOND, append, leader
from tidemill.core.errors import ErrorCode
from tidemill.replication.partition import Partition

RECORDS = 3


def fetched(part: Partition, *, start: int) -> None:
    """The second replica has all records from its log start on."""
    part.follower_fetched(
        SECOND, fetch_offset=RECORDS, flushed_offset=RECORDS, log_start_offset=start, now=1.0
    )


def proposed(part: Partition) -> list[int]:
    proposal = part.try_propose_isr(now=1.0)
    return [] if proposal is None else [broker_id for broker_id, _ in proposal.isr]


def deleting_leader(offset: int, heard: list[ErrorCode]) -> Partition:
    part = leader(isr=(OWN,))
    append(part, RECORDS)
    part.maybe_advance_marks()
    part.as_leader.delete_before(offset, heard.append)
    return part


def test_I9_who_has_missed_a_deletion_does_not_join():
    heard: list[ErrorCode] = []
    part = deleting_leader(2, heard)
    assert heard == [ErrorCode.NONE]
    fetched(part, start=0)
    assert SECOND not in proposed(part)
    fetched(part, start=2)
    assert SECOND in proposed(part)


def test_a_start_that_moves_all_the_time_keeps_nobody_out():
    heard: list[ErrorCode] = []
    part = deleting_leader(1, heard)
    fetched(part, start=1)  # a candidate from now on: deletions wait for it, too
    part.as_leader.delete_before(2, heard.append)
    assert heard == [ErrorCode.NONE]
    assert SECOND in proposed(part)
    fetched(part, start=2)
    assert heard == [ErrorCode.NONE, ErrorCode.NONE]
