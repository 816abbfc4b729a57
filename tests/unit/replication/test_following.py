"""A partition that follows: it copies the leader's batches and cuts what the leader never had."""

from __future__ import annotations

import pytest

from tests.support.partitions import (
    ALL,
    NOW_MS,
    SECOND,
    Flushes,
    append,
    batch,
    content,
    copy,
    image,
    leader,
    partition,
    refusal,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.partition import Partition
from tidemill.storage.log.interface import LogCut


def follower() -> Partition:
    made = partition()
    made.become_follower(image(leader=SECOND, epoch=9))
    return made


def test_I10_a_follower_holds_the_leaders_bytes():
    led, other = leader(epoch=3), follower()
    for count in (1, 5, 2):
        append(led, count)
    copy(led, other, high_watermark=6)
    assert content(other) == content(led)
    assert other.high_watermark == 6
    assert other.log.epochs.entries() == led.log.epochs.entries()


def test_a_followers_watermark_never_passes_its_log_end():
    other = follower()
    other.as_follower.append(batch(2), high_watermark=50, now_ms=NOW_MS)
    assert other.high_watermark == 2


def test_a_follower_reports_its_appends_to_the_flusher():
    flushes = Flushes()
    other = partition(flushes=flushes)
    other.become_follower(image(leader=SECOND))
    other.as_follower.append(batch(2), high_watermark=0, now_ms=NOW_MS)
    assert flushes.appended_bytes == len(batch(2))


def test_a_follower_keeps_nothing_of_a_batch_that_was_cut_off():
    other = follower()
    whole = batch(2) + batch(1, base_offset=2)
    for cut in range(1, len(batch(1))):
        assert other.as_follower.append(whole[:-cut], high_watermark=0, now_ms=NOW_MS) <= 1
        assert other.log.log_end_offset in (0, 2)
        other.log.restart_at(0)


def test_S23_a_follower_checks_the_checksum():
    damaged = bytearray(batch(2))
    damaged[-1] ^= 1
    other = follower()
    with pytest.raises(KafkaError) as caught:
        other.as_follower.append(damaged, high_watermark=0, now_ms=NOW_MS)
    assert refusal(caught) is ErrorCode.CORRUPT_MESSAGE
    assert other.log.log_end_offset == 0
    assert other.log.epochs.entries() == ()


def test_I2_a_follower_does_not_accept_an_offset_twice():
    other = follower()
    other.as_follower.append(batch(2), high_watermark=0, now_ms=NOW_MS)
    with pytest.raises(KafkaError) as caught:
        other.as_follower.append(batch(2), high_watermark=0, now_ms=NOW_MS)
    assert refusal(caught) is ErrorCode.CORRUPT_MESSAGE
    assert other.log.log_end_offset == 2


def test_a_follower_accepts_a_gap_that_compaction_left():
    other = follower()
    other.as_follower.append(batch(2, base_offset=5), high_watermark=0, now_ms=NOW_MS)
    assert other.log.log_end_offset == 7


def cut(other: Partition, planned: LogCut | None) -> None:
    """What the cutter does."""
    if planned is not None:
        planned.read()
        assert other.as_follower.begin_cut(planned)
        planned.perform()
        planned.end()


def follow(follower_: Partition, of: Partition) -> None:
    """Fetch until both logs agree, as the follower's loop does: first epochs, then bytes."""
    for _ in range(10):
        epoch, end = of.end_offset_of_epoch(follower_.log.epochs.latest)
        same = epoch == follower_.log.epochs.latest and end >= follower_.log.log_end_offset
        if same or follower_.log.epochs.latest < 0:
            copy(of, follower_)
            return
        cut(follower_, follower_.as_follower.plan_truncation(epoch, end))
    pytest.fail("the follower does not converge")


def test_I10_a_tail_that_the_new_leader_never_had_is_cut():
    old, new = leader(isr=ALL, epoch=1), follower()
    append(old, 3)
    new = partition()
    new.become_follower(image(leader=SECOND, epoch=1))
    copy(old, new)
    append(old, 4)
    new.become_leader(image(epoch=2), now=0.0)
    append(new, 2)
    old.become_follower(image(leader=SECOND, epoch=2))
    follow(old, new)
    assert content(old) == content(new)
    assert old.log.epochs.entries() == new.log.epochs.entries() == ((1, 0), (2, 3))


def test_I10_an_epoch_that_wrote_nothing_does_not_keep_a_follower_from_converging():
    """The old leader began an epoch and wrote nothing in it; the new one does not know it."""
    old, new = leader(epoch=1), partition()
    new.become_follower(image(leader=SECOND, epoch=1))
    append(old, 3)
    copy(old, new)
    old.become_leader(image(epoch=2), now=0.0)
    new.become_leader(image(epoch=3), now=0.0)
    append(new, 2)
    old.become_follower(image(leader=SECOND, epoch=3))
    follow(old, new)
    assert content(old) == content(new)
    assert old.log.epochs.entries() == new.log.epochs.entries()


def test_KIP279_a_fast_double_failover_ends_in_one_history():
    """Each has an epoch that the other lacks: the last common epoch decides."""
    one, two = leader(epoch=1), partition()
    two.become_follower(image(leader=SECOND, epoch=1))
    append(one, 2)
    copy(one, two)
    one.become_leader(image(epoch=2), now=0.0)
    append(one, 5)
    two.become_leader(image(epoch=3), now=0.0)
    append(two, 1)
    one.become_follower(image(leader=SECOND, epoch=3))
    follow(one, two)
    assert content(one) == content(two)


def test_an_empty_log_begins_where_the_leaders_first_batch_begins():
    other = follower()
    cut(other, other.as_follower.plan_restart(7))
    assert other.as_follower.try_find_begin(batch(4, base_offset=5)) == 5
    assert other.as_follower.try_find_begin(batch(4, base_offset=7)) is None
    assert other.as_follower.try_find_begin(b"") is None
    other.as_follower.append(batch(4, base_offset=7), high_watermark=0, now_ms=NOW_MS)
    assert other.as_follower.try_find_begin(batch(4, base_offset=5)) is None


def test_truncation_moves_the_marks_back():
    other = follower()
    other.as_follower.append(batch(4, epoch=1), high_watermark=4, now_ms=NOW_MS)
    other.as_follower.append(batch(4, base_offset=4, epoch=2), high_watermark=8, now_ms=NOW_MS)
    cut(other, other.as_follower.plan_truncation(1, 4))
    assert other.log.log_end_offset == 4
    assert other.high_watermark == 4
    assert other.durable_offset <= 4


def test_a_log_that_restarts_moves_the_marks_with_it():
    other = follower()
    other.as_follower.append(batch(4), high_watermark=4, now_ms=NOW_MS)
    cut(other, other.as_follower.plan_restart(100))
    assert (other.log.log_start_offset, other.log.log_end_offset) == (100, 100)
    assert other.high_watermark == other.durable_offset == 100
    cut(other, other.as_follower.plan_restart(0))
    assert other.high_watermark == other.durable_offset == 0


def test_a_log_without_the_leaders_epochs_is_dropped_to_its_start():
    other = follower()
    other.as_follower.append(batch(4, epoch=5), high_watermark=0, now_ms=NOW_MS)
    cut(other, other.as_follower.plan_truncation(3, 9))
    assert other.log.log_end_offset == 0


def test_what_acknowledgements_wait_for_is_flushed_in_the_next_round():
    flushes = Flushes()
    other = partition(flushes=flushes)
    other.become_follower(image(leader=SECOND, epoch=1))
    other.as_follower.append(batch(2), high_watermark=0, now_ms=NOW_MS)
    assert flushes.requested == 1
