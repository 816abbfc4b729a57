from __future__ import annotations

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
