"""A partition's roles, marks and acknowledgements, over a log in memory."""

from __future__ import annotations

import pytest

from tests.support.partitions import (
    ALL,
    NOW_MS,
    OWN,
    SECOND,
    THIRD,
    Flushes,
    SlowLog,
    Watch,
    Watcher,
    append,
    batch,
    fetched,
    image,
    leader,
    partition,
    refusal,
    settings,
    wait,
)
from tidemill.core.errors import ErrorCode, InvariantViolation, KafkaError

# --- roles ---------------------------------------------------------------------------------------


def test_without_a_role_nothing_is_appended():
    with pytest.raises(KafkaError) as caught:
        append(partition())
    assert refusal(caught) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_leader_alone_in_sync_moves_its_marks_by_itself():
    alone = partition()
    alone.become_leader(image(replicas=(OWN,)), now=0.0)
    append(alone, 3)
    assert alone.high_watermark == alone.durable_offset == 3


def test_I11_a_leader_epoch_never_goes_back():
    led = leader(epoch=4)
    with pytest.raises(InvariantViolation):
        led.become_follower(image(leader=SECOND, epoch=3))


def test_a_leader_that_becomes_a_follower_refuses_waiting_requests():
    led = leader(isr=ALL)
    heard = wait(led, append(led).next_offset)
    led.become_follower(image(leader=SECOND, epoch=1))
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    with pytest.raises(KafkaError) as caught:
        append(led)
    assert refusal(caught) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_change_of_the_in_sync_set_keeps_epoch_and_positions():
    led = leader(isr=ALL)
    append(led, 4)
    fetched(SECOND, led, 4)
    led.become_leader(image(isr=(OWN, SECOND), version=1), now=9.0)
    assert led.epoch_start_offset == 0
    assert led.high_watermark == 4


def test_R12_an_offline_partition_answers_with_a_storage_error():
    led = leader(isr=ALL)
    heard = wait(led, append(led).next_offset)
    led.go_offline()
    assert heard == [ErrorCode.KAFKA_STORAGE_ERROR]
    with pytest.raises(KafkaError) as caught:
        append(led)
    assert refusal(caught) is ErrorCode.KAFKA_STORAGE_ERROR


# --- marks and acknowledgements ------------------------------------------------------------------


def test_F79_the_high_watermark_is_what_every_in_sync_replica_has():
    led = leader(isr=ALL)
    append(led, 10)
    fetched(SECOND, led, 10)
    assert led.high_watermark == 0
    fetched(THIRD, led, 6)
    assert led.high_watermark == 6


def test_a_follower_outside_the_isr_does_not_hold_back_the_high_watermark():
    led = leader(isr=(OWN, SECOND))
    append(led, 10)
    fetched(THIRD, led, 1)
    fetched(SECOND, led, 10)
    assert led.high_watermark == 10


def test_I9_the_high_watermark_stays_when_a_follower_falls_back():
    led = leader(isr=ALL)
    append(led, 5)
    fetched(SECOND, led, 5)
    fetched(THIRD, led, 5)
    fetched(THIRD, led, 2)
    assert led.high_watermark == 5


def test_acks_all_waits_for_the_disks_of_all_in_sync_replicas():
    log = SlowLog()
    led = leader(log, isr=ALL)
    heard = wait(led, append(led, 2).next_offset)
    fetched(SECOND, led, 2)
    fetched(THIRD, led, 2, flushed=0)
    assert led.high_watermark == 2
    log.flush()
    led.maybe_advance_marks()
    assert heard == []
    fetched(THIRD, led, 2, flushed=2)
    assert heard == [ErrorCode.NONE]


def test_acks_all_waits_for_the_leaders_own_disk_too():
    log = SlowLog()
    led = leader(log, isr=(OWN, SECOND))
    heard = wait(led, append(led, 2).next_offset)
    fetched(SECOND, led, 2)
    assert heard == []
    log.flush()
    led.maybe_advance_marks()
    assert heard == [ErrorCode.NONE]


def test_with_flush_os_the_high_watermark_is_enough():
    led = leader(SlowLog(), isr=(OWN, SECOND), flush_before_ack=False)
    heard = wait(led, append(led, 2).next_offset)
    fetched(SECOND, led, 2, flushed=0)
    assert heard == [ErrorCode.NONE]
    assert led.durable_offset == 0


def test_T27_acks_all_is_refused_below_the_minimum_of_in_sync_replicas():
    led = leader(isr=(OWN,), in_sync_min=2)
    with pytest.raises(KafkaError) as caught:
        append(led)
    assert refusal(caught) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert led.log.log_end_offset == 0


def test_T27_acks_1_is_accepted_below_the_minimum_but_not_visible():
    led = leader(isr=(OWN,), in_sync_min=2)
    append(led, acks=1)
    assert led.high_watermark == 0


def test_T27_a_topic_with_one_replica_cannot_need_two():
    alone = partition(in_sync_min=2)
    alone.become_leader(image(replicas=(OWN,)), now=0.0)
    assert wait(alone, append(alone).next_offset) == [ErrorCode.NONE]


def test_I14_the_marks_stand_still_below_the_minimum():
    led = leader(isr=(OWN, SECOND), in_sync_min=2)
    heard = wait(led, append(led, 3).next_offset)
    led.become_leader(image(isr=(OWN,), version=1), now=1.0)
    assert led.high_watermark == 0
    assert heard == []


def test_a_lower_minimum_releases_waiting_requests():
    led = leader(isr=(OWN, SECOND), in_sync_min=2)
    heard = wait(led, append(led, 3).next_offset)
    led.become_leader(image(isr=(OWN,), version=1), now=1.0)
    led.set_settings(settings(in_sync_min=1))
    assert heard == [ErrorCode.NONE]


def test_S31_a_broker_without_a_replica_is_refused():
    led = leader()
    with pytest.raises(KafkaError) as caught:
        fetched(99, led, 0)
    assert refusal(caught) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_appends_wake_followers_and_the_watermark_wakes_consumers():
    led = leader(isr=(OWN, SECOND))
    consumer, follower = Watcher(), Watch()
    led.consumer_watchers[consumer] = None
    led.follower_watches.add(SECOND, follower)
    append(led)
    assert (consumer.wakes, follower.heard) == (0, ["grew"])
    fetched(SECOND, led, 1)
    assert (consumer.wakes, follower.heard) == (1, ["grew", "mark moved"])


def test_a_follower_has_one_watch_and_hears_of_another_role_and_another_start():
    led = leader(isr=(OWN, SECOND))
    old, new = Watch(), Watch()
    led.follower_watches.add(SECOND, old)
    led.follower_watches.add(SECOND, new)
    led.follower_watches.remove(SECOND, old)
    append(led)
    led.review_marks(now=0.0)
    led.review_marks(now=0.0)
    led.become_leader(image(epoch=led.leader_epoch + 1, isr=(OWN, SECOND)), now=0.0)
    led.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    led.follower_watches.remove(SECOND, new)
    led.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert old.heard == ["detached"]
    assert new.heard == ["grew", "mark moved", "role changed", "role changed"]


def test_I14_what_a_follower_has_flushed_counts_only_as_far_as_it_has_fetched_in_this_epoch():
    led = leader(isr=(OWN, SECOND))
    append(led, 4)
    led.follower_flushed(SECOND, 4)
    assert led.durable_offset == 0
    fetched(SECOND, led, 3, flushed=0)
    assert led.durable_offset == 0
    led.follower_flushed(SECOND, 4)
    assert led.durable_offset == 3
    led.follower_flushed(SECOND, 2)
    led.follower_flushed(99, 4)
    assert led.durable_offset == 3


def test_a_follower_that_has_everything_is_caught_up_although_it_does_not_fetch():
    led = leader(isr=(OWN, SECOND))
    append(led)
    fetched(SECOND, led, 1)
    led.review_marks(now=100.0)
    append(led)
    assert led.try_propose_isr(now=105.0) is None
    assert led.try_propose_isr(now=111.0) is not None


# --- epochs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_T36_another_leader_epoch_is_refused(asked, code):
    with pytest.raises(KafkaError) as caught:
        leader(epoch=5).check_epoch(asked)
    assert refusal(caught) is code


@pytest.mark.parametrize("asked", [-1, 5])
def test_T36_the_same_epoch_and_none_are_accepted(asked):
    leader(epoch=5).check_epoch(asked)


def test_T37_the_end_of_an_epoch_is_where_the_next_one_began():
    led = leader(epoch=2)
    append(led, 4)
    led.become_leader(image(epoch=5), now=1.0)
    append(led, 3)
    assert led.end_offset_of_epoch(2) == (2, 4)
    assert led.end_offset_of_epoch(4) == (2, 4)
    assert led.end_offset_of_epoch(5) == (5, 7)
    assert led.end_offset_of_epoch(1) == (1, 0)


def test_T37_an_epoch_whose_records_were_all_deleted_ended_at_the_log_start():
    led = leader(epoch=2)
    append(led, 4)
    led.log.advance_start(4)
    led.become_leader(image(epoch=3), now=1.0)
    append(led, 3)
    led.log.advance_start(5)
    assert led.end_offset_of_epoch(2) == (2, 5)


def test_T37_an_epoch_after_the_partitions_own_is_unknown():
    led = leader(epoch=2)
    append(led, 4)
    assert led.end_offset_of_epoch(3) == (-1, -1)


def test_T37_the_partitions_own_epoch_is_known_though_it_wrote_nothing():
    led = leader(epoch=2)
    append(led, 4)
    led.become_leader(image(epoch=7), now=1.0)
    assert led.end_offset_of_epoch(5) == (2, 4)
    assert led.end_offset_of_epoch(7) == (7, 4)
    assert led.end_offset_of_epoch(8) == (-1, -1)


def test_I16_a_follower_flushes_what_it_appended_while_it_led():
    flushes, log = Flushes(), SlowLog()
    former = leader(log, flushes=flushes)
    append(former, acks=1)
    assert flushes.requested == 0
    former.become_follower(image(leader=SECOND, epoch=1))
    assert flushes.requested == 1
    log.flush()
    former.become_follower(image(leader=SECOND, epoch=1, version=1))
    assert flushes.requested == 1


def test_a_follower_flushes_what_it_has_when_acknowledgements_begin_to_wait_for_disks():
    flushes, log = Flushes(), SlowLog()
    follower = partition(log, flushes=flushes, flush_before_ack=False)
    follower.become_follower(image(leader=SECOND))
    follower.as_follower.append(batch(), high_watermark=0, now_ms=NOW_MS)
    assert flushes.requested == 0
    follower.set_settings(settings())
    assert flushes.requested == 1
