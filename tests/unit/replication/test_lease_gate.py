"""H3: what a leader without a lease refuses, what it holds back, and what goes on."""

from __future__ import annotations

import pytest

from tests.support.partitions import (
    OWN,
    SECOND,
    Lease,
    SlowLog,
    append,
    fetched,
    image,
    leader,
    refusal,
    wait,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.leader_log import ACKS_ALL


@pytest.mark.parametrize("acks", [0, 1, ACKS_ALL])
def test_I15_a_leader_without_a_lease_appends_nothing(acks):
    lease = Lease()
    led = leader(lease=lease)
    lease.may_act = False
    with pytest.raises(KafkaError) as caught:
        append(led, acks=acks)
    assert refusal(caught) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert led.log.log_end_offset == 0


def test_I8_a_leader_without_a_lease_serves_followers_but_no_clients():
    lease = Lease()
    led = leader(lease=lease)
    lease.may_act = False
    led.check_serves_followers()
    with pytest.raises(KafkaError) as caught:
        led.check_leader()
    assert refusal(caught) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_acknowledgement_is_held_until_the_lease_is_back():
    lease = Lease()
    led = leader(lease=lease, isr=(OWN, SECOND))
    heard = wait(led, append(led, 3).next_offset)
    lease.may_act = False
    fetched(SECOND, led, 3)
    assert (led.high_watermark, heard, led.marks_are_held) == (0, [], True)
    lease.may_act = True
    led.maybe_advance_marks()
    assert (led.high_watermark, heard, led.marks_are_held) == (3, [ErrorCode.NONE], False)


def test_a_flush_without_a_lease_releases_nothing():
    lease, log = Lease(), SlowLog()
    led = leader(log, lease=lease)
    heard = wait(led, append(led, 3).next_offset)
    lease.may_act = False
    log.flush()
    led.maybe_advance_marks()
    assert (led.durable_offset, heard) == (0, [])


def test_an_acknowledgement_that_is_held_ends_with_the_leadership():
    lease = Lease()
    led = leader(lease=lease, isr=(OWN, SECOND))
    heard = wait(led, append(led, 3).next_offset)
    lease.may_act = False
    led.become_follower(image(leader=SECOND, epoch=1, version=1))
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not led.marks_are_held


def test_a_new_leader_without_a_lease_moves_no_mark():
    lease = Lease()
    lease.may_act = False
    led = leader(lease=lease)
    assert led.marks_are_held
