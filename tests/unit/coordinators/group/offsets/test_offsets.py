from __future__ import annotations

from uuid import UUID

import pytest

from tests.support.shard_desk import (
    CHECK_INTERVAL_MS,
    GROUP,
    MINUTE_MS,
    NEWEST_COMMIT,
    NEWEST_FETCH,
    RETENTION_MS,
    ShardDesk,
    commit_request,
    refusal,
    topic_image,
)
from tidemill.coordinators.group.base.records import encode_record, try_decode_key
from tidemill.coordinators.runtime.shard import Now
from tidemill.core.errors import ErrorCode, ProtocolViolation
from tidemill.wire.generated.offset_commit_record import OffsetCommitKey, OffsetCommitValue
from tidemill.wire.generated.offset_fetch import OffsetFetchRequestTopics

METADATA_BYTES_MAX = 4_096
NOWHERE = UUID(int=404)


@pytest.fixture
def desk():
    return ShardDesk()


# --- commits -------------------------------------------------------------------------------------


def test_T46_an_offset_is_read_as_it_was_committed(desk):
    assert desk.commit(5, index=1, metadata="here", epoch=3) is ErrorCode.NONE
    (entry,) = desk.fetch(indexes=[1]).topics[0].partitions
    assert (entry.committed_offset, entry.committed_leader_epoch) == (5, 3)
    assert (entry.metadata, entry.error_code) == ("here", 0)


def test_T46_a_later_commit_replaces_an_earlier_one_also_by_a_lower_offset(desk):
    desk.commit(5, metadata="first")
    desk.commit(3)
    (entry,) = desk.fetch().topics[0].partitions
    assert (entry.committed_offset, entry.metadata) == (3, "")


def test_I28_nothing_is_known_before_the_record_was_replayed(desk):
    desk.shard.offsets.commit(commit_request(5), version=9, now=desk.now)
    assert desk.committed() == -1
    assert desk.listed() == {}


def test_I28_offsets_are_the_same_after_the_log_was_loaded_elsewhere(desk):
    desk.commit(5, metadata="m", epoch=2)
    desk.commit(6, index=1)
    desk.commit(7, metadata="n")
    other = desk.reloaded()
    assert other.fetch(indexes=[0, 1]) == desk.fetch(indexes=[0, 1])


def test_null_metadata_is_stored_as_none(desk):
    assert desk.commit(5, metadata=None) is ErrorCode.NONE
    assert desk.fetch().topics[0].partitions[0].metadata == ""


@pytest.mark.parametrize(("topic", "index"), [("nope", 0), ("t", 2), ("t", -1)])
def test_S45_partitions_that_do_not_exist_are_refused_one_by_one(desk, topic, index):
    code = desk.commit(5, topic=topic, index=index)
    assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert desk.log == []


@pytest.mark.parametrize("offset", [-1, -2, -(2**63)])
def test_T46_a_negative_offset_is_returned_as_it_was_committed(desk, offset):
    """kafkajs resets a group to the start or the end by committing -2 or -1."""
    assert desk.commit(offset, metadata="reset") is ErrorCode.NONE
    for host in (desk, desk.reloaded()):
        (entry,) = host.fetch().topics[0].partitions
        assert (entry.committed_offset, entry.metadata) == (offset, "reset")
        (listed,) = host.fetch_topics(None).topics[0].partitions
        assert listed == entry


def test_S45_an_offset_beyond_the_end_is_accepted_as_in_kafka(desk):
    assert desk.commit(2**63 - 1) is ErrorCode.NONE
    assert desk.committed() == 2**63 - 1


@pytest.mark.parametrize("text", ["x" * METADATA_BYTES_MAX, "ä" * (METADATA_BYTES_MAX // 2)])
def test_T46_metadata_of_the_largest_size_is_taken(desk, text):
    assert desk.commit(5, metadata=text) is ErrorCode.NONE
    assert desk.reloaded().fetch().topics[0].partitions[0].metadata == text


@pytest.mark.parametrize("text", ["x" * (METADATA_BYTES_MAX + 1), "ä" * 2_049])
def test_T46_metadata_over_4096_bytes_is_refused(desk, text):
    assert desk.commit(5, metadata=text) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert desk.log == []


def test_one_refused_partition_does_not_hold_back_its_neighbour(desk):
    request = commit_request(5)
    request.topics += commit_request(6, topic="nope").topics
    long = "x" * (METADATA_BYTES_MAX + 1)
    request.topics[0].partitions += commit_request(index=1, metadata=long).topics[0].partitions
    response = desk.take(desk.shard.offsets.commit(request, version=9, now=desk.now))
    codes = [one.error_code for topic in response.topics for one in topic.partitions]
    assert codes == [0, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert desk.committed() == 5


def test_topics_may_be_named_by_their_ids(desk):
    assert desk.commit(5, topic=UUID(int=1), version=NEWEST_COMMIT) is ErrorCode.NONE
    assert desk.committed() == 5
    code = desk.commit(5, topic=NOWHERE, version=NEWEST_COMMIT)
    assert code is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_second_commit_writes_the_very_key_of_the_first(desk):
    desk.commit(5)
    desk.commit(6)
    assert desk.log[0].key == desk.log[1].key
    assert try_decode_key(desk.log[1].key) == OffsetCommitKey(group=GROUP, topic="t", partition=0)


def test_a_damaged_record_is_refused_and_leaves_nothing_behind(desk):
    key = encode_record(OffsetCommitKey(group=GROUP, topic="t"), None, 0).key
    with pytest.raises(ProtocolViolation):
        desk.shard.replay(key, b"\x00\x04\x00")
    assert desk.shard.offsets.count == 0
    assert desk.listed() == {}


# --- reading -------------------------------------------------------------------------------------


def test_T45_what_was_never_committed_is_minus_one_without_an_error(desk):
    desk.commit(5)
    (entry,) = desk.fetch(indexes=[1]).topics[0].partitions
    assert (entry.committed_offset, entry.committed_leader_epoch) == (-1, -1)
    assert (entry.metadata, entry.error_code) == ("", 0)


@pytest.mark.parametrize("topic", ["t", "nope"])
def test_T45_an_unknown_group_has_no_committed_offsets(desk, topic):
    answer = desk.fetch(topic, group_id="unheard of", member_id="m", member_epoch=7)
    assert answer.error_code == 0
    assert answer.topics[0].partitions[0].committed_offset == -1


def test_T45_null_topics_are_all_that_was_committed():
    desk = ShardDesk(topic_image("t", 1), topic_image("u", 2))
    desk.commit(5, topic="t")
    desk.commit(6, topic="u", index=1)
    answer = desk.fetch_topics(None)
    found = {
        (topic.name, one.partition_index): one.committed_offset
        for topic in answer.topics
        for one in topic.partitions
    }
    assert found == {("t", 0): 5, ("u", 1): 6}


def test_T45_from_version_10_topics_are_asked_for_and_answered_by_id(desk):
    desk.commit(5)
    asked = [
        OffsetFetchRequestTopics(topic_id=UUID(int=1), partition_indexes=[0]),
        OffsetFetchRequestTopics(topic_id=NOWHERE, partition_indexes=[0]),
    ]
    known, unknown = desk.fetch_topics(asked, version=NEWEST_FETCH).topics
    assert (known.topic_id, known.partitions[0].committed_offset) == (UUID(int=1), 5)
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    (everything,) = desk.fetch_topics(None, version=NEWEST_FETCH).topics
    assert (everything.topic_id, everything.name) == (UUID(int=1), "")


def test_T45_a_member_with_an_old_epoch_is_refused(desk):
    desk.heartbeat(member_id="m")
    epoch = desk.heartbeat(member_id="other").member_epoch
    assert refusal(desk.fetch, member_id="m", member_epoch=epoch + 7) in {
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
    assert refusal(desk.fetch, member_id="ghost", member_epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID


# --- deleted topics ------------------------------------------------------------------------------


def test_I34_offsets_of_a_deleted_topic_are_deleted(desk):
    desk.commit(5)
    desk.change_topics()
    assert desk.shard.offsets.count == 0
    assert desk.reloaded().shard.offsets.count == 0


def test_I34_a_later_topic_of_the_same_name_has_no_offsets(desk):
    desk.commit(5)
    desk.change_topics(topic_image("t", 2))
    assert desk.committed() == -1
    desk.commit(7)
    assert desk.committed() == desk.reloaded().committed() == 7


def test_I34_offsets_are_hidden_even_before_they_are_deleted(desk):
    desk.commit(5)
    other = ShardDesk(topic_image("t", 2), log=desk.log)
    assert other.committed() == -1
    assert other.fetch_topics(None).topics == []


def test_I34_offsets_of_a_topic_deleted_without_a_coordinator_go_with_a_regular_sweep(desk):
    desk.commit(5)
    other = ShardDesk(topic_image("t", 2), log=desk.log)
    other.pass_time(CHECK_INTERVAL_MS)
    assert other.shard.offsets.count == 0


def test_a_topic_that_is_not_in_the_image_yet_keeps_its_offsets(desk):
    desk.commit(5)
    late = ShardDesk(topic_image("elsewhere", 9), log=desk.log)
    assert late.committed() == 5
    late.change_topics(topic_image("elsewhere", 9), topic_image("t", 1))
    late.pass_time(CHECK_INTERVAL_MS)
    assert late.committed() == 5


def test_records_without_a_topic_id_belong_to_the_topic_of_that_name(desk):
    value = OffsetCommitValue(offset=8, commit_timestamp=desk.now.wall_ms)
    record = encode_record(OffsetCommitKey(group=GROUP, topic="t"), value, 1)
    desk.shard.replay(*record)
    desk.pass_time(CHECK_INTERVAL_MS)
    assert desk.committed() == 8


def test_a_deleted_topic_removes_only_its_own_offsets():
    desk = ShardDesk(topic_image("t", 1), topic_image("u", 2))
    desk.commit(5, topic="t")
    desk.commit(6, topic="u")
    desk.change_topics(topic_image("u", 2))
    assert desk.committed("u") == 6
    assert desk.shard.offsets.count == 1


def test_more_topics_go_while_a_sweep_is_under_way():
    topics = [topic_image(f"t{number}", number) for number in range(1, 4)]
    desk = ShardDesk(*topics)
    for number in range(300):
        for topic in topics:
            desk.commit(5, topic=topic.name, group_id=f"g{number}")
    before = desk.image
    desk.change_topics(topics[1], topics[2])
    desk.change_topics(topics[2])
    assert desk.shard.offsets.count == 300
    assert before.topics.keys() == {"t1", "t2", "t3"}


# --- expiry --------------------------------------------------------------------------------------


def test_offsets_of_a_simple_group_expire_after_their_last_commit(desk):
    desk.commit(5)
    desk.pass_time(RETENTION_MS - MINUTE_MS)
    desk.commit(6, index=1)
    desk.pass_time(2 * MINUTE_MS + CHECK_INTERVAL_MS)
    assert (desk.committed(index=0), desk.committed(index=1)) == (-1, 6)


def test_a_group_is_deleted_with_its_last_offset(desk):
    desk.commit(5)
    desk.pass_time(RETENTION_MS + CHECK_INTERVAL_MS)
    assert desk.listed() == {}
    assert desk.shard.group_count == 0
    assert desk.reloaded().listed() == {}


def test_offsets_of_a_group_with_members_do_not_expire():
    desk = ShardDesk(group_max_session_timeout_ms=2**31 - 1)
    joined = desk.join()
    desk.commit(5, generation=joined.generation_id, member=joined.member_id)
    last_seen = Now(0, desk.now.wall_ms + 2 * RETENTION_MS)
    desk.now = last_seen
    desk.shard.loaded(Now(-CHECK_INTERVAL_MS, last_seen.wall_ms))
    desk.settle()
    assert desk.committed() == 5


def test_a_group_that_was_left_keeps_its_offsets_for_the_retention_time(desk):
    joined = desk.join()
    desk.commit(5, generation=joined.generation_id, member=joined.member_id)
    desk.pass_time(5_000)
    desk.leave(joined.member_id)
    left_ms = desk.now.wall_ms
    desk.pass_time(RETENTION_MS - CHECK_INTERVAL_MS)
    assert desk.committed() == 5
    desk.pass_time(2 * CHECK_INTERVAL_MS)
    assert desk.now.wall_ms > left_ms + RETENTION_MS
    assert desk.committed() == -1
    assert desk.reloaded().listed() == {}


@pytest.mark.parametrize("count", [1, 2, 250])
def test_members_that_die_together_leave_their_offsets_for_the_retention_time(desk, count):
    """As after a restart of the broker, when all clients are dead: their sessions end at once."""
    epoch = desk.heartbeat(member_id="m0").member_epoch
    desk.commit(5, generation=epoch, member="m0")
    for number in range(1, count):
        desk.heartbeat(member_id=f"m{number}")
    desk.now = Now(0, desk.now.wall_ms + RETENTION_MS + MINUTE_MS)
    restarted = desk.reloaded()
    restarted.pass_time(MINUTE_MS)
    assert restarted.listed() == {GROUP: ("consumer", "Empty")}
    restarted.pass_time(RETENTION_MS - 2 * MINUTE_MS)
    assert restarted.committed() == 5
    restarted.pass_time(2 * MINUTE_MS + CHECK_INTERVAL_MS)
    assert restarted.committed() == -1


def test_offsets_of_topics_that_no_member_reads_any_more_expire():
    desk = ShardDesk(topic_image("t", 1), topic_image("u", 2))
    desk.commit(5, topic="u")
    desk.pass_time(RETENTION_MS - MINUTE_MS)
    epoch = desk.heartbeat(topics=["t"]).member_epoch
    desk.commit(6, topic="t", generation=epoch, member="m")
    desk.now = Now(desk.now.monotonic_ms, desk.now.wall_ms + 2 * MINUTE_MS)
    desk.shard.loaded(Now(desk.now.monotonic_ms - CHECK_INTERVAL_MS, desk.now.wall_ms))
    desk.settle()
    assert (desk.committed("t"), desk.committed("u")) == (6, -1)


def test_S38_a_sweep_is_cut_into_slices_that_a_batch_holds():
    desk = ShardDesk(topic_image("t", 1, partitions=3_000))
    request = commit_request(5, group_id="g" * 1_000)
    for index in range(1, 3_000):
        request.topics[0].partitions += commit_request(5, index=index).topics[0].partitions
    desk.take(desk.shard.offsets.commit(request, version=9, now=desk.now))
    desk.now = Now(RETENTION_MS + CHECK_INTERVAL_MS, desk.now.wall_ms + 2 * RETENTION_MS)
    slices = desk.settle()
    sizes = [sum(len(record.key) for record in records) for records in slices]
    assert len(slices) > 5
    assert max(sizes) < 512 * 1024
    assert desk.listed() == {}


def test_S38_a_sweep_looks_at_some_groups_at_a_time():
    desk = ShardDesk()
    for number in range(1_000):
        desk.commit(5, group_id=f"g{number}")
    desk.now = Now(CHECK_INTERVAL_MS, desk.now.wall_ms + CHECK_INTERVAL_MS)
    assert len(desk.settle()) >= 10
    assert desk.shard.group_count == 1_000


def test_groups_that_go_during_a_sweep_are_passed_over(desk):
    for number in range(300):
        desk.commit(5, group_id=f"g{number}")
    desk.now = Now(CHECK_INTERVAL_MS, desk.now.wall_ms + CHECK_INTERVAL_MS)
    desk.take(desk.shard.expire(desk.now))
    for number in range(300):
        desk.delete_group(f"g{number}")
    desk.settle()
    assert desk.shard.next_deadline_ms() == 2 * CHECK_INTERVAL_MS
