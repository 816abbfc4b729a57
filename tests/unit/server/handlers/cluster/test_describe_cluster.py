from __future__ import annotations

import pytest

from tests.unit.server.one_broker import ADVERTISED, OneBroker
from tidemill.core.errors import ErrorCode
from tidemill.metadata.features.feature_levels import OLDER_SOFTWARE
from tidemill.server.request.authorized_operations import NOT_REQUESTED
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.describe_cluster import DescribeClusterRequest

VERSIONS = range(3)


@pytest.mark.parametrize("version", VERSIONS)
def test_T20_brokers_controller_and_cluster_id(broker, version):
    broker.join_broker(2)
    answer = broker.call(DescribeClusterRequest(), version)
    assert answer.error_code == ErrorCode.NONE
    assert answer.cluster_id == broker.image.cluster_id
    assert answer.controller_id == 1
    assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [
        (1, *ADVERTISED),
        (2, "other.example", 9092),
    ]
    assert not any(one.is_fenced for one in answer.brokers)


def test_the_answer_names_the_rack_and_an_empty_one_is_null(broker):
    racked = OneBroker(**{"broker.rack": "north"})
    racks = [one.call(DescribeClusterRequest(), 2).brokers[0].rack for one in (racked, broker)]
    racked.close()
    assert racks == ["north", None]


@pytest.mark.parametrize("version", VERSIONS)
def test_T20_authorized_operations_are_sent_only_on_request(broker, version):
    broker.permissions.deny(Operation.ALTER)
    silent = broker.call(DescribeClusterRequest(), version)
    asked = broker.call(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert silent.cluster_authorized_operations == NOT_REQUESTED
    bits = asked.cluster_authorized_operations
    assert bits >> Operation.CREATE.value & 1
    assert not bits >> Operation.ALTER.value & 1


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_T20_controllers_have_no_endpoints(broker, version):
    answer = broker.call(DescribeClusterRequest(endpoint_type=2), version)
    assert (answer.error_code, answer.brokers) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, [])
    assert answer.error_message


def test_a_broker_that_its_software_keeps_out_is_fenced_and_says_why(broker):
    broker.join_broker(7, software=OLDER_SOFTWARE)
    answer = broker.call(DescribeClusterRequest(include_fenced_brokers=True), 2)
    found = {one.broker_id: (one.is_fenced, one.kept_out_because) for one in answer.brokers}
    why = "broker 7 runs an older version and lacks tidemill.version 2: upgrade it"
    assert found == {1: (False, ""), 7: (True, why)}
    listed = broker.call(DescribeClusterRequest(), 2).brokers
    assert [one.broker_id for one in listed] == [1]
