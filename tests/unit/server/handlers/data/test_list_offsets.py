from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.server.request.partition_access import PARTITIONS_PER_SLICE
from tidemill.wire.compression import GZIP
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

VERSIONS = range(1, 12)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    PENDING_UPLOAD: 11,
}
READ_COMMITTED = 1
CONSUMER, FOLLOWER = -1, 2


def request(timestamp, *, name="t", index=0, epoch=-1, isolation=0, replica=CONSUMER):
    wanted = ListOffsetsPartition(
        partition_index=index, current_leader_epoch=epoch, timestamp=timestamp
    )
    topics = [ListOffsetsTopic(name=name, partitions=[wanted])]
    return ListOffsetsRequest(replica_id=replica, isolation_level=isolation, topics=topics)


def ask(broker, timestamp, version=11, **wanted):
    """The one entry of the answer."""
    return broker.call(request(timestamp, **wanted), version).topics[0].partitions[0]


def offset_of(entry):
    assert entry.error_code == ErrorCode.NONE
    return entry.offset


def wait_for_follower(broker):
    """A topic with a second replica in sync that has fetched nothing, led in its second epoch."""
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [1, 2]})
    broker.append("t", 1000, 1001, 1002)
    broker.lead_again("t")
    partition = broker.partition("t")
    assert partition.high_watermark < partition.epoch_start_offset
    return partition


@pytest.mark.parametrize("version", VERSIONS)
def test_T39_latest_is_the_high_watermark_and_earliest_the_log_start(broker, version):
    broker.make_topic("t")
    broker.append("t", 1000, 1001, 1002)
    broker.partition("t").log.advance_start(1)

    latest, earliest = ask(broker, LATEST, version), ask(broker, EARLIEST, version)

    assert (offset_of(latest), latest.timestamp) == (3, -1)
    assert (offset_of(earliest), earliest.timestamp) == (1, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_leader_epochs_are_told_from_version_4_on(broker, version):
    broker.make_topic("t")
    broker.append("t", 1000)
    broker.lead_again("t")
    epoch = broker.partition("t").leader_epoch

    told = [ask(broker, wanted, version).leader_epoch for wanted in (LATEST, EARLIEST)]

    assert told == ([epoch, epoch - 1] if version >= 4 else [-1, -1])


@pytest.mark.parametrize("version", VERSIONS)
def test_T39_a_time_is_found_inside_a_compressed_batch(broker, version):
    broker.make_topic("t")
    broker.append("t", 1000, 1005, 1003, 1009, codec=GZIP)

    found = ask(broker, 1004, version)

    assert (offset_of(found), found.timestamp) == (1, 1005)


def test_T39_a_time_after_the_last_record_is_no_error(broker):
    broker.make_topic("t")
    broker.append("t", 1000)
    found = ask(broker, 2000)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.NONE, -1, -1)


def test_T39_the_greatest_timestamp_is_that_of_its_first_record(broker):
    broker.make_topic("t")
    broker.append("t", 1000, 3000, 2000)
    broker.append("t", 3000)
    found = ask(broker, MAX_TIMESTAMP)
    assert (offset_of(found), found.timestamp) == (1, 3000)


def test_T39_an_empty_log_has_no_greatest_timestamp(broker):
    broker.make_topic("t")
    found = ask(broker, MAX_TIMESTAMP)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.NONE, -1, -1)


def test_T39_without_tiers_earliest_local_is_the_log_start(broker):
    broker.make_topic("t")
    broker.append("t", 1000, 1001)
    broker.partition("t").log.advance_start(1)
    assert offset_of(ask(broker, EARLIEST_LOCAL)) == 1


@pytest.mark.parametrize("timestamp", [LATEST_TIERED, PENDING_UPLOAD])
def test_T39_without_tiers_remote_offsets_are_unknown(broker, timestamp):
    broker.make_topic("t")
    broker.append("t", 1000)
    found = ask(broker, timestamp)
    assert (found.error_code, found.offset, found.leader_epoch) == (ErrorCode.NONE, -1, -1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("timestamp", [*FIRST_VERSION, -7])
def test_T39_special_values_exist_from_their_version_on(broker, version, timestamp):
    broker.make_topic("t")
    supported = version >= FIRST_VERSION.get(timestamp, 99)
    wanted = ErrorCode.NONE if supported else ErrorCode.UNSUPPORTED_VERSION
    assert ask(broker, timestamp, version).error_code == wanted


def test_records_above_the_high_watermark_are_not_found_by_time(broker):
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [1, 2]})
    broker.append("t", 1000)
    assert ask(broker, 500).offset == -1


def test_read_committed_ends_at_the_last_stable_offset(broker):
    broker.make_topic("t")
    broker.append("t", 1000, 1001)
    stable = broker.partition("t").last_stable_offset()
    assert offset_of(ask(broker, LATEST, isolation=READ_COMMITTED)) == stable


def test_a_follower_is_told_the_log_end(broker):
    wait_for_follower(broker)
    assert offset_of(ask(broker, LATEST, replica=FOLLOWER)) == 3


def test_only_brokers_may_ask_as_a_follower(broker):
    broker.make_topic("t")
    broker.permissions.deny(Operation.CLUSTER_ACTION)
    entry = ask(broker, LATEST, replica=FOLLOWER)
    assert entry.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", VERSIONS)
def test_a_new_leader_names_no_end_before_its_watermark_reached_its_start(broker, version):
    wait_for_follower(broker)
    wanted = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    assert ask(broker, LATEST, version).error_code == wanted


@pytest.mark.parametrize("timestamp", [1000, MAX_TIMESTAMP])
def test_a_new_leader_does_not_say_that_a_record_does_not_exist(broker, timestamp):
    wait_for_follower(broker)
    assert ask(broker, timestamp).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


def test_a_new_leader_names_its_end_once_the_followers_have_caught_up(broker):
    partition = wait_for_follower(broker)
    partition.follower_fetched(2, fetch_offset=3, flushed_offset=3, now=0.0)
    assert offset_of(ask(broker, LATEST)) == 3


def test_a_new_leader_names_its_beginning_at_once(broker):
    wait_for_follower(broker)
    assert offset_of(ask(broker, EARLIEST)) == 0


@pytest.mark.parametrize(
    ("difference", "code"),
    [(-1, ErrorCode.FENCED_LEADER_EPOCH), (0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_T36_the_clients_epoch_must_be_ours(broker, difference, code):
    broker.make_topic("t")
    broker.lead_again("t")
    epoch = broker.partition("t").leader_epoch + difference
    assert ask(broker, LATEST, epoch=epoch).error_code == code


@pytest.mark.parametrize(
    ("name", "index", "code"),
    [
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no/name", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_S45_partitions_that_do_not_exist_are_refused_one_by_one(broker, name, index, code):
    broker.make_topic("t")
    assert ask(broker, LATEST, name=name, index=index).error_code == code


def test_a_partition_that_another_broker_leads_is_refused(broker):
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [2]})
    assert ask(broker, LATEST).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_of_the_partition_refuses(broker):
    broker.make_topic("t")
    partition = broker.partition("t")
    partition.become_follower(replace(partition.image, leader=2))
    assert ask(broker, LATEST).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_client_that_may_not_describe_a_topic_learns_no_offsets(broker):
    broker.make_topic("t")
    broker.permissions.deny(Operation.DESCRIBE, "t")
    assert ask(broker, LATEST).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_an_unknown_isolation_level_is_refused(broker):
    broker.make_topic("t")
    assert ask(broker, LATEST, isolation=2).error_code == ErrorCode.INVALID_REQUEST


def test_an_offline_log_directory_is_a_storage_error(broker):
    broker.make_topic("t")
    broker.replicas.go_offline()
    assert ask(broker, LATEST).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_S11_a_long_list_gives_others_a_turn_after_every_slice(broker):
    broker.make_topic("t")
    wanted = [ListOffsetsPartition(timestamp=LATEST)] * (3 * PARTITIONS_PER_SLICE)
    many = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=wanted)])
    assert broker.turns_of(many, 11) >= 3
