from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

VERSIONS = range(2, 5)


def ask(broker, epoch, version=4, *, name="t", current=-1):
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    topics = [OffsetForLeaderTopic(topic=name, partitions=[wanted])]
    return broker.call(OffsetForLeaderEpochRequest(topics=topics), version).topics[0].partitions[0]


def epochs_with_a_gap(broker):
    """Two records in the first epoch, one in the third; the first epoch's number."""
    broker.make_topic("t")
    first = broker.partition("t").leader_epoch
    broker.append("t", 1000, 1001)
    broker.lead_again("t")
    broker.lead_again("t")
    broker.append("t", 1002)
    return first


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("asked", "answer"), [(0, (0, 2)), (1, (0, 2)), (2, (2, 3))])
def test_T37_the_largest_epoch_up_to_the_one_asked_for(broker, version, asked, answer):
    first = epochs_with_a_gap(broker)
    entry = ask(broker, first + asked, version)
    assert (entry.leader_epoch - first, entry.end_offset) == answer


def told(entry):
    return entry.error_code, entry.leader_epoch, entry.end_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_T37_an_epoch_before_all_that_is_known_ended_where_the_log_begins(broker, version):
    """-1 would mean lost records: a consumer that has lost nothing would reset its position."""
    first = epochs_with_a_gap(broker)
    broker.partition("t").log.advance_start(3)
    assert told(ask(broker, first, version)) == (ErrorCode.NONE, first, 3)


@pytest.mark.parametrize("version", VERSIONS)
def test_T37_an_epoch_after_the_leaders_own_is_undefined(broker, version):
    epochs_with_a_gap(broker)
    current = broker.partition("t").leader_epoch
    assert told(ask(broker, current + 1, version)) == (ErrorCode.NONE, -1, -1)


def test_T37_no_epoch_is_undefined(broker):
    epochs_with_a_gap(broker)
    assert told(ask(broker, -1)) == (ErrorCode.NONE, -1, -1)


@pytest.mark.parametrize(
    ("difference", "code"),
    [(-1, ErrorCode.FENCED_LEADER_EPOCH), (0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_T36_the_clients_epoch_must_be_ours(broker, difference, code):
    epochs_with_a_gap(broker)
    current = broker.partition("t").leader_epoch + difference
    assert ask(broker, 0, current=current).error_code == code


def test_unknown_partitions_and_missing_rights_are_refused(broker):
    broker.make_topic("t")
    broker.permissions.deny(Operation.DESCRIBE, "t")
    assert ask(broker, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert ask(broker, 0, name="u").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
