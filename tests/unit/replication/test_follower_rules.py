"""What a follower accepts of its leader: batches, and cuts of its own log."""

from __future__ import annotations

import pytest

from tests.support.partitions import NOW_MS, SECOND, batch, image, partition, refusal
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.following import CutVerdict, judge_cut, rest_s_after
from tidemill.replication.partition import Partition


@pytest.fixture
def follower() -> Partition:
    """It has two records of epoch 3 and follows a leader of epoch 5."""
    made = partition()
    made.become_follower(image(leader=SECOND, epoch=5))
    made.as_follower.append(batch(2, epoch=3), high_watermark=2, now_ms=NOW_MS)
    return made


def _with_magic(magic: int) -> bytes:
    bad = bytearray(batch(1, base_offset=2, epoch=3))
    bad[16] = magic
    return bytes(bad)


@pytest.mark.parametrize(
    "sent",
    [
        batch(1, base_offset=1, epoch=3),
        batch(1, base_offset=2, epoch=2),
        batch(1, base_offset=2, epoch=6),
        batch(1, base_offset=2, epoch=-1),
        batch(1, base_offset=2, epoch=4) + batch(1, base_offset=3, epoch=3),
        batch(1, base_offset=(1 << 63) - 1, epoch=3),
        _with_magic(1),
        _with_magic(3),
        b"\xff" * 200,
    ],
    ids=[
        "an offset again",
        "an older epoch",
        "an epoch above the leader's",
        "no epoch",
        "falling epochs",
        "offsets that end the world",
        "magic 1",
        "magic 3",
        "no batch",
    ],
)
def test_H9_S23_a_leaders_bad_batches_are_refused_and_nothing_breaks(follower, sent):
    with pytest.raises(KafkaError) as caught:
        follower.as_follower.append(sent, high_watermark=9, now_ms=NOW_MS)
    assert refusal(caught) is ErrorCode.CORRUPT_MESSAGE
    assert follower.log.log_end_offset == 2
    assert follower.log.epochs.entries() == ((3, 0),)


def test_batches_of_several_epochs_up_to_the_leaders_are_fine(follower):
    sent = batch(1, base_offset=2, epoch=3) + batch(1, base_offset=3, epoch=5)
    assert follower.as_follower.append(sent, high_watermark=2, now_ms=NOW_MS) == 2


def test_I13_a_cut_above_what_was_committed_is_fine():
    verdict = judge_cut(5, committed_offset=5, epoch_there=2, unclean_epoch=-1)
    assert verdict is CutVerdict.FINE


@pytest.mark.parametrize(
    ("unclean_epoch", "verdict"),
    [
        (-1, CutVerdict.REFUSED),
        (2, CutVerdict.REFUSED),
        (3, CutVerdict.LOSES),
        (None, CutVerdict.LOSES),
    ],
)
def test_I13_committed_records_are_cut_only_after_an_unclean_election(unclean_epoch, verdict):
    assert judge_cut(4, committed_offset=5, epoch_there=2, unclean_epoch=unclean_epoch) is verdict


def test_a_partition_that_fails_rests_longer_each_time():
    assert [rest_s_after(count) for count in (1, 2, 3, 5, 6, 99)] == [1, 2, 4, 16, 30, 30]


def test_H5_the_log_start_follows_the_leaders_but_never_beyond_what_is_committed(follower):
    assert follower.as_follower.follow_start(1)
    assert follower.log.log_start_offset == 1
    assert not follower.as_follower.follow_start(1)
    assert not follower.as_follower.follow_start(0)
    follower.as_follower.append(batch(4, base_offset=2, epoch=3), high_watermark=3, now_ms=NOW_MS)
    assert follower.as_follower.follow_start(6)
    assert follower.log.log_start_offset == 3


def test_a_cut_never_ends_before_the_first_offset(follower):
    assert follower.as_follower.common_end(3, -5) == 0
