from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.server.handlers.topics.elect_leaders import PARTITIONS_PER_SLICE
from tidemill.wire.generated.elect_leaders import ElectLeadersRequest, TopicPartitions


def test_S11_a_long_list_of_partitions_is_looked_at_in_slices(broker):
    many = [TopicPartitions(topic="no", partitions=list(range(3 * PARTITIONS_PER_SLICE)))]
    # Named, decided (in shorter slices) and answered.
    assert broker.turns_of(ElectLeadersRequest(topic_partitions=many), 2) >= 2 + 11 + 2


def test_every_partition_is_answered_once_whatever_its_number(broker):
    broker.make_topic("t")
    asked = [TopicPartitions(topic="t", partitions=[0, -1, 0, 2**31 - 1])]
    answer = broker.call(ElectLeadersRequest(topic_partitions=asked), 2)
    (topic,) = answer.replica_election_results
    assert [(one.partition_id, one.error_code) for one in topic.partition_result] == [
        (0, ErrorCode.ELECTION_NOT_NEEDED),
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2**31 - 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def choose(broker, leader, *, in_epoch=0, election_type=1, partitions=(0,)):
    asked = [TopicPartitions(topic="t", partitions=list(partitions))]
    return broker.call(
        ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=asked,
            chosen_leader=leader,
            chosen_in_epoch=in_epoch,
        ),
        2,
    )


def test_I13_a_person_chooses_whose_log_wins(broker):
    broker.join_broker(2)
    broker.make_topic("t", -1, assignments={0: [1, 2]})
    answer = choose(broker, 2)
    assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.NONE
    now = broker.image.partition("t", 0)
    assert (now.leader, now.leader_epoch, now.isr, now.unclean_epoch) == (2, 1, (2,), 1)
    answer = choose(broker, 1)  # decided for an epoch that has passed
    refused = answer.replica_election_results[0].partition_result[0]
    assert refused.error_code == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("fields", [{"election_type": 0}, {"partitions": (0, 1)}])
def test_I13_a_leader_is_chosen_for_one_partition_and_by_an_unclean_election(broker, fields):
    broker.make_topic("t", 2)
    assert choose(broker, 1, **fields).error_code == ErrorCode.INVALID_REQUEST
