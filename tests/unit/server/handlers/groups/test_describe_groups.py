from __future__ import annotations

import pytest

from tests.unit.server.group_requests import with_two_groups
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.describe_groups import DescribeGroupsRequest

NOT_ASKED = -(2**31)


@pytest.fixture
def groups(broker):
    return with_two_groups(broker)


def describe(broker, *names, version=6, **fields):
    response = broker.call(DescribeGroupsRequest(groups=list(names), **fields), version)
    return response.groups


@pytest.mark.parametrize("version", range(7))
def test_an_empty_group_is_described(groups, version):
    (described,) = describe(groups, "a", version=version)
    assert (described.group_id, described.group_state) == ("a", "Empty")
    assert (described.error_code, described.members) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("version", range(6))
def test_an_unknown_group_is_dead_before_version_6(groups, version):
    _, described = describe(groups, "a", "unknown", version=version)
    assert (described.group_state, described.error_code) == ("Dead", ErrorCode.NONE)


def test_an_unknown_group_is_not_found_from_version_6_on(groups):
    (described,) = describe(groups, "unknown")
    assert (described.group_state, described.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert "unknown" in described.error_message


@pytest.mark.parametrize("version", range(3, 7))
def test_authorized_operations_are_sent_only_on_request(groups, version):
    groups.permissions.deny(Operation.DESCRIBE_CONFIGS, "a")
    (asked,) = describe(groups, "a", version=version, include_authorized_operations=True)
    operations = (Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.ALTER_CONFIGS)
    assert asked.authorized_operations == sum(1 << one.value for one in operations)
    (not_asked,) = describe(groups, "a", version=version)
    assert not_asked.authorized_operations == NOT_ASKED


@pytest.mark.parametrize("version", [5, 6])
def test_a_group_that_may_not_be_described_is_refused(groups, version):
    groups.permissions.deny(Operation.DESCRIBE, "a")
    refused, described = describe(groups, "a", "b", version=version)
    assert refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert described.error_code == ErrorCode.NONE


def test_S11_many_groups_are_asked_in_slices(groups):
    request = DescribeGroupsRequest(groups=[f"group-{number}" for number in range(1_000)])
    assert groups.turns_of(request, 6) >= 3
