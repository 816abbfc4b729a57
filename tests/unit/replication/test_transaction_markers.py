"""Markers and transactional batches through a partition: marks, fences, failover."""

from __future__ import annotations

import pytest

from tests.support.partitions import (
    ALL,
    NOW_MS,
    OWN,
    SECOND,
    append,
    copy,
    fetched,
    image,
    leader,
    partition,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import ENDED_TRANSACTIONS_MAX
from tidemill.replication.leader_log import Appended
from tidemill.replication.partition import Partition
from tidemill.wire.records import Record, build_batch

CODECS = range(5)


def write(to: Partition, *, epoch: int = 0, sequence: int = 0, codec: int = 0) -> Appended:
    return append(
        to,
        producer_id=9,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
        codec=codec,
    )


def end(of: Partition, *, epoch: int = 0, commit: bool = True, coordinator: int = 0) -> Appended:
    return of.as_leader.append_marker(
        9, epoch, is_commit=commit, coordinator_epoch=coordinator, now_ms=NOW_MS
    )


def pending(epoch: int = 0) -> bytearray:
    return build_batch(
        [Record(b"v", key=b"k", timestamp=NOW_MS)],
        producer_id=9,
        producer_epoch=epoch,
        transactional=True,
    )


@pytest.mark.parametrize("codec", CODECS)
def test_a_transactional_batch_of_every_codec_is_appended(codec):
    led = leader()
    assert write(led, codec=codec).base_offset == 0
    assert led.last_stable_offset() == 0


def test_T34_the_stable_offset_moves_when_the_marker_is_everywhere():
    led = leader(isr=ALL)
    write(led)
    for follower in ALL[1:]:
        fetched(follower, led, 1)
    assert (led.high_watermark, led.last_stable_offset()) == (1, 0)
    assert end(led).base_offset == 1
    assert led.last_stable_offset() == 0
    for follower in ALL[1:]:
        fetched(follower, led, 2)
    assert led.last_stable_offset() == 2


def test_a_repeated_marker_appends_nothing():
    led = leader()
    write(led)
    end(led, epoch=1)
    again = end(led, epoch=1)
    assert again.duplicate
    assert led.log.log_end_offset == again.next_offset == 2
    with pytest.raises(KafkaError) as caught:
        write(led, sequence=1)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_I22_a_late_marker_of_a_replaced_coordinator_does_not_end_the_next_transaction():
    led = leader()
    write(led)
    end(led, coordinator=5)
    end(led, coordinator=6)  # the successor found the decision in its log and repeats it
    write(led, sequence=1)
    with pytest.raises(KafkaError) as caught:
        end(led, coordinator=5)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert led.log.producers.open_count == 1


def test_a_marker_is_refused_by_whoever_does_not_lead():
    with pytest.raises(KafkaError) as caught:
        end(partition())
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_cannot_write_a_marker():
    with pytest.raises(KafkaError) as caught:
        append(leader(), producer_id=9, producer_epoch=0, transactional=True, control=True)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_coordinators_own_batches_open_a_transaction():
    led = leader()
    led.as_leader.append_own(pending(), now_ms=NOW_MS)
    led.as_leader.append_own(pending(), now_ms=NOW_MS)
    assert led.last_stable_offset() == 0
    end(led)
    assert led.last_stable_offset() == 3
    end(led, epoch=1, commit=False)
    with pytest.raises(KafkaError) as caught:
        led.as_leader.append_own(pending(), now_ms=NOW_MS)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_I23_a_follower_that_takes_over_holds_no_transaction_that_ended_for_good():
    first, second = leader(isr=(OWN, SECOND)), partition()
    second.become_follower(image(leader=OWN, isr=(OWN, SECOND)))
    for number in range(ENDED_TRANSACTIONS_MAX + 10):
        everywhere = first.log.log_end_offset
        write(first, sequence=number)
        end(first)
        copy(first, second, high_watermark=everywhere)
    second.become_leader(image(leader=OWN, epoch=1, isr=(OWN, SECOND)), now=0.0)
    assert second.last_stable_offset() == everywhere


def test_I23_a_follower_that_takes_over_knows_what_is_open():
    first, second = leader(isr=(OWN, SECOND)), partition()
    second.become_follower(image(leader=OWN, isr=(OWN, SECOND)))
    write(first)
    copy(first, second, high_watermark=1)
    end(first, commit=False)
    copy(first, second, high_watermark=1)
    assert second.last_stable_offset() == 0
    second.become_leader(image(leader=OWN, epoch=1, isr=(OWN,)), now=0.0)
    assert second.last_stable_offset() == 2
    assert [one.first_offset for one in second.log.find_aborted(0, 2)] == [0]
