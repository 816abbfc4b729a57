"""No batch of an idempotent producer overtakes one that was refused for now (I1, I4, I5)."""

from __future__ import annotations

import pytest

from tests.support.partitions import (
    NOW_MS,
    OWN,
    SECOND,
    Lease,
    append,
    batch,
    copy,
    image,
    leader,
    partition,
)
from tests.unit.replication.test_room_for_appends import AMPLE, LOW, RESERVE, set_free
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError
from tidemill.core.limits import REFUSED_KEPT_MS, REFUSED_PRODUCERS_MAX
from tidemill.replication.refused_batches import RefusedBatches, RefusedTotal
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.wire.batch import read_header

LAST_SEQUENCE = 2**31 - 1


def send(to, sequence, count=1, *, epoch=0, producer_id=9):
    return append(to, count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def code_of(work) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        work()
    return refused.value.code


@pytest.fixture
def part():
    return leader(room=DiskRoom("/data"))


def test_I1_a_small_batch_does_not_overtake_the_first_one_that_found_no_room(part):
    set_free(part.room, RESERVE + 1_000)
    with pytest.raises(DiskFull):
        send(part, 0, 500)
    assert code_of(lambda: send(part, 500)) is ErrorCode.KAFKA_STORAGE_ERROR
    set_free(part.room, AMPLE)
    assert send(part, 0, 500).base_offset == 0
    assert send(part, 500).base_offset == 500


def test_I4_what_follows_a_refused_batch_is_no_gap_although_there_is_room_again(part):
    send(part, 0)
    set_free(part.room, LOW)
    with pytest.raises(DiskFull):
        send(part, 1)
    set_free(part.room, AMPLE)
    assert code_of(lambda: send(part, 2)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert send(part, 1).base_offset == 1
    assert send(part, 2).base_offset == 2


def test_I4_the_same_holds_where_the_file_system_is_full(part, monkeypatch):
    send(part, 0)
    with monkeypatch.context() as full:

        def no_block(*_args, **_options):
            raise DiskFull("no space left on device")

        full.setattr(part.log, "append", no_block)
        with pytest.raises(DiskFull):
            send(part, 1)
    assert code_of(lambda: send(part, 2)) is ErrorCode.KAFKA_STORAGE_ERROR


def test_I1_a_batch_does_not_overtake_one_that_found_too_few_replicas_in_sync():
    part = leader(in_sync_min=2)
    assert code_of(lambda: send(part, 0)) is ErrorCode.NOT_ENOUGH_REPLICAS
    part.become_leader(image(isr=(OWN, SECOND), version=1), now=0.0)
    assert code_of(lambda: send(part, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(part, 0).base_offset == 0
    assert send(part, 1).base_offset == 1


def test_I1_a_batch_does_not_overtake_one_that_came_while_the_leader_could_not_act():
    lease = Lease()
    part = leader(lease=lease)
    lease.may_act = False
    assert code_of(lambda: send(part, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    lease.may_act = True
    assert code_of(lambda: send(part, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(part, 0).base_offset == 0
    assert send(part, 1).base_offset == 1


def test_a_batch_before_the_refused_one_does_not_take_its_place():
    refused = RefusedBatches()
    first, second, third = (
        read_header(batch(producer_id=9, producer_epoch=0, base_sequence=sequence))
        for sequence in (0, 1, 2)
    )
    refused.add(second, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS)
    refused.appended(first)
    assert code_of(lambda: refused.check(third, NOW_MS))
    refused.appended(second)
    refused.check(third, NOW_MS)


def test_a_refused_batch_whose_sequence_was_damaged_is_not_waited_for_when_it_has_come():
    refused = RefusedBatches()
    damaged, whole, later = (
        read_header(batch(count, producer_id=9, producer_epoch=0, base_sequence=sequence))
        for sequence, count in ((5, 1), (0, 10), (10, 1))
    )
    refused.add(damaged, ErrorCode.CORRUPT_MESSAGE, NOW_MS)
    refused.appended(whole)
    refused.check(later, NOW_MS)


def begin_transaction(to, sequence, *, epoch=0, producer_id=9):
    return append(
        to,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def end_transaction(of, producer_id, epoch, *, is_bumped=False):
    of.as_leader.append_marker(
        producer_id,
        epoch,
        is_commit=True,
        coordinator_epoch=0,
        now_ms=NOW_MS,
        is_bumped=is_bumped,
    )


def test_I1_a_batch_does_not_overtake_one_that_found_too_many_transactions_open(part):
    part.log.producers.producer_ids_max = 1
    begin_transaction(part, 0, producer_id=8)
    refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert code_of(lambda: begin_transaction(part, 0)) is refused
    end_transaction(part, 8, 0)
    assert code_of(lambda: begin_transaction(part, 1)) is refused
    assert begin_transaction(part, 0).base_offset == 2
    assert begin_transaction(part, 1).base_offset == 3


def test_I4_what_follows_a_batch_that_came_before_the_end_of_the_last_transaction_is_no_gap(part):
    begin_transaction(part, 0)
    first = batch(producer_id=9, producer_epoch=1, base_sequence=0, transactional=True)
    part.as_leader.refused(memoryview(first), ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS)
    end_transaction(part, 9, 1, is_bumped=True)
    assert code_of(lambda: begin_transaction(part, 1, epoch=1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert begin_transaction(part, 0, epoch=1).base_offset == 2
    assert begin_transaction(part, 1, epoch=1).base_offset == 3


def test_a_producer_that_begins_another_epoch_goes_on(part):
    set_free(part.room, LOW)
    with pytest.raises(DiskFull):
        send(part, 0)
    set_free(part.room, AMPLE)
    assert send(part, 0, epoch=1).base_offset == 0
    assert send(part, 1, epoch=1).base_offset == 1


def test_other_producers_go_on_and_sequences_begin_anew_after_the_last(part):
    send(part, LAST_SEQUENCE - 1)
    set_free(part.room, LOW)
    with pytest.raises(DiskFull):
        send(part, LAST_SEQUENCE)
    set_free(part.room, AMPLE)
    assert code_of(lambda: send(part, 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert send(part, 7, producer_id=10).base_offset == 1
    assert send(part, LAST_SEQUENCE).base_offset == 2
    assert send(part, 0).base_offset == 3


def test_I1_a_leader_that_has_missed_an_epoch_lets_none_overtake(part):
    set_free(part.room, LOW)
    with pytest.raises(DiskFull):
        send(part, 0)
    set_free(part.room, AMPLE)
    part.become_leader(image(isr=(OWN,), epoch=2, version=2), now=0.0)
    assert code_of(lambda: send(part, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert send(part, 0).base_offset == 0
    assert send(part, 1).base_offset == 1


def test_I1_a_batch_does_not_overtake_one_that_was_damaged_on_its_way(part):
    damaged = bytearray(batch(producer_id=9, producer_epoch=0, base_sequence=0))
    damaged[-1] ^= 1

    def send_damaged():
        part.as_leader.append(memoryview(damaged), acks=-1, now_ms=NOW_MS)

    assert code_of(send_damaged) is ErrorCode.CORRUPT_MESSAGE
    assert code_of(lambda: send(part, 1)) is ErrorCode.CORRUPT_MESSAGE
    assert send(part, 0).base_offset == 0
    assert send(part, 1).base_offset == 1


@pytest.mark.parametrize("epoch", [0, 1])
def test_I1_a_leader_that_was_away_for_a_moment_lets_none_overtake(part, epoch):
    part.step_back(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert code_of(lambda: send(part, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    part.become_leader(image(isr=(OWN,), epoch=epoch, version=1), now=0.0)
    assert code_of(lambda: send(part, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(part, 0).base_offset == 0
    assert send(part, 1).base_offset == 1


def test_I1_a_broker_that_hears_late_that_it_leads_lets_none_overtake(part):
    part.become_follower(image(leader=SECOND, epoch=1, version=1))
    assert code_of(lambda: send(part, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    part.become_leader(image(isr=(OWN,), epoch=2, version=2), now=0.0)
    assert code_of(lambda: send(part, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(part, 0).base_offset == 0
    assert send(part, 1).base_offset == 1


def test_I1_a_broker_that_was_restarted_lets_none_overtake_what_came_before_it_was_let_in():
    part = partition()
    part.step_back(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert code_of(lambda: send(part, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    part.become_leader(image(isr=(OWN,), epoch=3), now=0.0)
    assert code_of(lambda: send(part, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(part, 0).base_offset == 0
    assert send(part, 1).base_offset == 1


def test_I1_a_leader_that_has_followed_for_a_moment_lets_none_overtake(part):
    set_free(part.room, LOW)
    with pytest.raises(DiskFull):
        send(part, 0)
    set_free(part.room, AMPLE)
    part.become_follower(image(leader=SECOND, epoch=1, version=1))
    part.become_leader(image(isr=(OWN,), epoch=2, version=2), now=0.0)
    assert code_of(lambda: send(part, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert send(part, 0).base_offset == 0


def test_what_a_follower_refuses_its_leader_may_have_taken(part):
    led = leader(epoch=1)
    part.become_follower(image(leader=SECOND, epoch=1, version=1))
    assert code_of(lambda: send(part, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    send(led, 0)
    send(led, 1)
    copy(led, part)
    part.become_leader(image(isr=(OWN,), epoch=2, version=2), now=0.0)
    assert send(part, 1).base_offset == 1
    assert send(part, 2).base_offset == 2


def test_what_its_leader_had_deleted_before_it_was_copied_is_not_waited_for(part):
    led = leader(epoch=1)
    part.become_follower(image(leader=SECOND, epoch=1, version=1))
    assert code_of(lambda: send(part, 0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    send(led, 0)
    send(led, 1)
    led.log.advance_start(1)
    cut = part.as_follower.plan_restart(1)
    assert part.as_follower.begin_cut(cut)
    copy(led, part, high_watermark=2)
    part.become_leader(image(isr=(OWN,), epoch=2, version=2), now=0.0)
    assert send(part, 2).base_offset == 2


def test_I36_refused_producers_are_bounded():
    refused = RefusedBatches()
    for producer_id in range(2 * REFUSED_PRODUCERS_MAX):
        one = batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
        refused.add(read_header(one), ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS)
    assert len(refused) == REFUSED_PRODUCERS_MAX


def note(refused: RefusedBatches, *producer_ids: int) -> None:
    for producer_id in producer_ids:
        header = read_header(batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
        refused.add(header, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS)


def test_I36_partitions_together_forget_the_one_that_has_not_changed_for_longest():
    total = RefusedTotal(4)
    first, second, third = (RefusedBatches(total=total) for _ in range(3))
    note(first, 1)
    note(second, 1, 2)
    note(first, 2)
    note(third, 1)
    assert [len(one) for one in (first, second, third)] == [2, 0, 1]
    assert len(total) == 3


def test_I36_producers_that_are_not_waited_for_any_more_make_room_for_others():
    total = RefusedTotal(4)
    ended, given_up, cleared, kept = (RefusedBatches(total=total) for _ in range(4))
    for refused in (ended, given_up, cleared, kept):
        note(refused, 9)
    first, second = (
        read_header(batch(producer_id=9, producer_epoch=0, base_sequence=n)) for n in (0, 1)
    )
    ended.appended(first)
    given_up.check(second, NOW_MS + REFUSED_KEPT_MS + 1)
    cleared.clear()
    assert len(total) == 1
    note(ended, 1, 2, 3)
    assert len(kept) == 1


def test_a_batch_that_does_not_come_again_is_not_waited_for_for_ever():
    refused = RefusedBatches()
    first, second = (
        read_header(batch(producer_id=9, producer_epoch=0, base_sequence=sequence))
        for sequence in (0, 1)
    )
    refused.add(first, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS)
    assert code_of(lambda: refused.check(second, NOW_MS + REFUSED_KEPT_MS))
    refused.check(second, NOW_MS + REFUSED_KEPT_MS + 1)
    assert not refused


def test_I1_a_batch_that_was_given_up_does_not_hide_one_that_is_refused_later():
    refused = RefusedBatches()
    given_up, second, third = (
        read_header(batch(producer_id=9, producer_epoch=0, base_sequence=sequence))
        for sequence in (0, 1, 2)
    )
    refused.add(given_up, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS)
    later_ms = NOW_MS + REFUSED_KEPT_MS + 1
    refused.add(second, ErrorCode.NOT_ENOUGH_REPLICAS, later_ms)
    assert code_of(lambda: refused.check(third, later_ms)) is ErrorCode.NOT_ENOUGH_REPLICAS
    refused.check(second, later_ms)


@pytest.mark.parametrize("late", [RefusedBatches.appended, None])
def test_I1_a_late_batch_of_an_older_epoch_does_not_end_the_wait_for_a_newer_one(late):
    refused = RefusedBatches()
    first, second = (
        read_header(batch(producer_id=9, producer_epoch=1, base_sequence=sequence))
        for sequence in (0, 1)
    )
    old = read_header(batch(producer_id=9, producer_epoch=0, base_sequence=7))
    refused.add(first, ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS)
    if late is None:
        refused.add(old, ErrorCode.NOT_ENOUGH_REPLICAS, NOW_MS)
    else:
        late(refused, old)
    assert code_of(lambda: refused.check(second, NOW_MS)) is ErrorCode.NOT_ENOUGH_REPLICAS
