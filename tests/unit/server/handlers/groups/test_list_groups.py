from __future__ import annotations

import pytest

from tests.unit.server.group_requests import OFFSETS_TOPIC, list_groups, with_two_groups
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.list_groups import ListGroupsRequest


@pytest.fixture
def groups(broker):
    return with_two_groups(broker)


@pytest.mark.parametrize("version", range(6))
def test_the_groups_of_all_shards_are_listed(groups, version):
    found = list_groups(groups, version)
    assert found.keys() == {"a", "b"}
    assert found["a"].group_state == ("Empty" if version >= 4 else "")
    assert found["a"].group_type == ("classic" if version >= 5 else "")


def test_filters_ignore_case(groups):
    assert list_groups(groups, states_filter=["EMPTY"], types_filter=["Classic"]).keys() == {
        "a",
        "b",
    }
    assert list_groups(groups, states_filter=["Stable"]) == {}
    assert list_groups(groups, types_filter=["consumer", "no such type"]) == {}


def test_a_client_that_may_not_describe_the_cluster_sees_the_groups_it_may_describe(groups):
    groups.permissions.deny(Operation.DESCRIBE, "kafka-cluster")
    groups.permissions.deny(Operation.DESCRIBE, "a")
    assert list_groups(groups).keys() == {"b"}


def test_a_broker_without_groups_has_an_empty_list(broker):
    assert list_groups(broker) == {}


def test_the_list_is_refused_while_some_groups_are_being_loaded(groups):
    partition = next(
        one
        for index in range(4)
        if (one := groups.partition(OFFSETS_TOPIC, index)).log.log_end_offset > 0
    )
    groups.groups.runtime.resign(partition.name.partition)
    groups.groups.runtime.lead(partition.name.partition, partition)
    response = groups.call(ListGroupsRequest(), 5)
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert response.groups == []
