"""What a follower tells its leader next: the partitions that changed, and only these."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.partitions import OWN, SECOND, Flushes, SlowLog, batch, image, settings
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.core.limits import MIB
from tidemill.replication.partition import Partition
from tidemill.replication.pulling import fetch_round
from tidemill.replication.pulling.fetch_lane import progress_of
from tidemill.replication.pulling.fetch_round import FetchRound, LaneLimits, key_of
from tidemill.replication.pulling.lanes import CATCH_UP, HOT, behind_bytes, lane_for
from tidemill.storage.log.interface import LogConfig
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.wire.generated.fetch import FetchRequest

TOPIC_ID = TopicId(UUID(int=7))
EPOCH = 3


def followed(index: int, log: SlowLog | None = None) -> Partition:
    made = Partition(
        TopicPartition("t", index),
        TOPIC_ID,
        log or MemoryPartitionLog(LogConfig()),  # type: ignore[arg-type]
        broker_id=OWN,
        settings=settings(),
        flushes=Flushes(),
        high_watermark=0,
    )
    made.become_follower(image(leader=SECOND, epoch=EPOCH))
    return made


def round_of(count: int) -> tuple[FetchRound, list[Partition]]:
    made = FetchRound(OWN, HOT, LaneLimits())
    partitions = [followed(index) for index in range(count)]
    for one in partitions:
        made.add(one)
    return made, partitions


def asked(made: FetchRound, *, now: float = 0.0) -> FetchRequest:
    return made.next_request(broker_epoch=8, now=now)


def named(request: FetchRequest) -> list[int]:
    return [one.partition for topic in request.topics for one in topic.partitions]


def test_the_first_fetch_names_all_and_the_next_one_only_what_has_changed():
    made, partitions = round_of(4)
    first = asked(made)
    assert (named(first), first.session_id) == ([0, 1, 2, 3], 0)
    assert made.answered(55) == 1
    assert named(asked(made)) == []
    made.change(partitions[2])
    made.change(partitions[2])
    next_ = asked(made)
    assert (named(next_), next_.session_id, next_.session_epoch) == ([2], 55, 1)


def test_a_fetch_says_where_the_log_ends_and_what_is_flushed():
    made, (one,) = round_of(1)
    one.as_follower.append(batch(3, epoch=EPOCH), high_watermark=0, now_ms=0)
    (wanted,) = asked(made).topics[0].partitions
    assert (wanted.fetch_offset, wanted.flushed_offset) == (3, 3)
    assert (wanted.current_leader_epoch, wanted.last_fetched_epoch) == (EPOCH, EPOCH)


def test_I14_only_what_is_flushed_is_told_as_flushed():
    one = followed(0, SlowLog())
    made = FetchRound(OWN, HOT, LaneLimits())
    made.add(one)
    one.as_follower.append(batch(3, epoch=EPOCH), high_watermark=0, now_ms=0)
    (wanted,) = asked(made).topics[0].partitions
    assert (wanted.fetch_offset, wanted.flushed_offset) == (3, 0)
    assert progress_of(one).flushed_offset == 0


def test_a_new_connection_names_all_again():
    made, partitions = round_of(3)
    asked(made)
    made.answered(55)
    made.hold(partitions[1])
    made.restart()
    assert not made.has_session
    assert named(asked(made)) == [0, 2]


def test_many_partitions_are_named_in_several_fetches_that_do_not_wait(monkeypatch):
    monkeypatch.setattr(fetch_round, "SLOTS_PER_FETCH_MAX", 2)
    made, _ = round_of(5)
    requests = [asked(made) for _ in range(3)]
    assert [named(one) for one in requests] == [[0, 1], [2, 3], [4]]
    assert [one.max_wait_ms for one in requests] == [0, 0, 500]


def test_a_partition_that_is_held_is_named_when_its_time_has_come():
    made, partitions = round_of(2)
    asked(made)
    made.hold(partitions[0], until=5.0)
    made.change(partitions[0])
    waiting = asked(made, now=4.9)
    assert (named(waiting), waiting.max_wait_ms) == ([], 99)
    assert named(asked(made, now=5.0)) == [0]


def test_a_partition_that_is_held_for_good_is_named_when_it_is_released():
    made, partitions = round_of(2)
    asked(made)
    made.hold(partitions[0])
    assert asked(made, now=1e9).max_wait_ms == 500
    made.release(partitions[0])
    assert made.has_changes
    assert named(asked(made)) == [0]


def test_a_partition_that_left_is_forgotten_once():
    made, partitions = round_of(2)
    asked(made)
    made.remove(partitions[1])
    made.remove(partitions[1])
    gone = asked(made).forgotten_topics_data
    assert [(one.topic_id, one.partitions) for one in gone] == [(TOPIC_ID, [1])]
    assert asked(made).forgotten_topics_data == []
    assert len(made) == 1


def test_what_was_never_named_need_not_be_forgotten():
    made, partitions = round_of(1)
    made.remove(partitions[0])
    request = asked(made)
    assert (named(request), request.forgotten_topics_data) == ([], [])


def test_an_answer_from_before_a_partition_came_back_does_not_count():
    made, (one,) = round_of(1)
    asked(made)
    asked(made)
    made.remove(one)
    made.add(one)
    asked(made)
    first, second, third = (made.answered(55) for _ in range(3))
    assert made.try_named(key_of(one), first) is None
    assert made.try_named(key_of(one), second) is None
    known = made.try_named(key_of(one), third)
    assert known is not None
    assert (known.partition, known.leader_epoch) == (one, EPOCH)


# --- lanes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lane", "behind", "wanted"),
    [
        (HOT, 0, HOT),
        (HOT, 16 * MIB, HOT),
        (HOT, 16 * MIB + 1, CATCH_UP),
        (CATCH_UP, 16 * MIB, CATCH_UP),
        (CATCH_UP, 4 * MIB, CATCH_UP),
        (CATCH_UP, 4 * MIB - 1, HOT),
    ],
)
def test_a_partition_changes_lanes_far_behind_and_nearly_caught_up(lane, behind, wanted):
    assert lane_for(lane, behind) == wanted


def test_how_far_behind_is_judged_by_the_records_that_came():
    assert behind_bytes(leader_end=1000, own_end=100, read_offsets=100, read_bytes=5_000) == 45_000
    assert behind_bytes(leader_end=100, own_end=100, read_offsets=100, read_bytes=5_000) == 0
    assert behind_bytes(leader_end=-1, own_end=100, read_offsets=100, read_bytes=5_000) == 0
    assert behind_bytes(leader_end=1000, own_end=100, read_offsets=0, read_bytes=61) == 0
