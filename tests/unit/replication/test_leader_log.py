"""What a leader appends: offsets and epoch, flushes that it asks for, and retries."""

from __future__ import annotations

import pytest

from tests.support.partitions import (
    OWN,
    SECOND,
    Flushes,
    SlowLog,
    append,
    copy,
    image,
    leader,
    partition,
    refusal,
    wait,
)
from tidemill.core.errors import ErrorCode, KafkaError

# --- offsets and flushes -------------------------------------------------------------------------


def test_a_leader_gives_offsets_and_its_epoch_to_batches():
    led = leader(epoch=4)
    assert append(led, 3).base_offset == 0
    second = append(led, 2)
    assert (second.base_offset, second.next_offset) == (3, 5)
    assert led.log.epochs.entries() == ((4, 0),)


def test_an_append_that_waits_for_the_disk_requests_one_flush():
    flushes = Flushes()
    led = leader(SlowLog(), flushes=flushes)
    wait(led, append(led).next_offset)
    assert flushes.requested == 1


def test_with_flush_os_no_append_requests_a_flush():
    flushes = Flushes()
    led = leader(SlowLog(), flushes=flushes, flush_before_ack=False)
    wait(led, append(led).next_offset)
    assert flushes.requested == 0


def test_waiting_for_a_batch_appended_with_acks_1_requests_its_flush():
    flushes = Flushes()
    led = leader(SlowLog(), flushes=flushes)
    next_offset = append(led, acks=1).next_offset
    assert flushes.requested == 0
    wait(led, next_offset)
    assert flushes.requested == 1


def test_a_new_leader_epoch_requests_flushes_again():
    flushes = Flushes()
    led = leader(SlowLog(), flushes=flushes)
    next_offset = append(led).next_offset
    led.become_leader(image(epoch=1), now=0.0)
    wait(led, next_offset)
    assert flushes.requested == 2


def test_a_batch_that_is_already_durable_is_acknowledged_at_once():
    led = leader()
    assert wait(led, append(led).next_offset) == [ErrorCode.NONE]


# --- idempotence ---------------------------------------------------------------------------------


def test_T29_a_retry_gets_the_first_offset_and_is_not_appended_again():
    led = leader()
    identity = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    first = append(led, 3, **identity)
    again = append(led, 3, **identity)
    assert again.duplicate
    assert (again.base_offset, again.next_offset) == (first.base_offset, first.next_offset)
    assert led.log.log_end_offset == 3


def test_T29_a_retry_waits_for_the_same_durable_offset_as_its_original():
    log = SlowLog()
    led = leader(log)
    identity = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    original = wait(led, append(led, 3, **identity).next_offset)
    retry = wait(led, append(led, 3, **identity).next_offset)
    assert original == retry == []
    log.flush()
    led.maybe_advance_marks()
    assert original == retry == [ErrorCode.NONE]


def test_T29_a_gap_in_the_sequence_appends_nothing():
    led = leader()
    append(led, 1, producer_id=9, producer_epoch=0, base_sequence=0)
    with pytest.raises(KafkaError) as caught:
        append(led, 1, producer_id=9, producer_epoch=0, base_sequence=5)
    assert refusal(caught) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert led.log.log_end_offset == 1


def test_I18_a_follower_knows_the_sequences_when_it_becomes_the_leader():
    led = leader(isr=(OWN, SECOND))
    identity = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    first = append(led, 2, **identity)
    other = partition()
    other.become_follower(image(leader=SECOND))
    copy(led, other)
    other.become_leader(image(epoch=1), now=0.0)
    again = append(other, 2, **identity)
    assert again.duplicate
    assert again.base_offset == first.base_offset
