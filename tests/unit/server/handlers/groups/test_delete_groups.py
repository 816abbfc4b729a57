from __future__ import annotations

import pytest

from tests.unit.server.group_requests import delete_groups, list_groups, with_two_groups
from tidemill.core.errors import ErrorCode
from tidemill.server.request.authorizer import Operation


@pytest.fixture
def groups(broker):
    return with_two_groups(broker)


@pytest.mark.parametrize("version", range(3))
def test_each_group_is_deleted_or_refused_by_itself(groups, version):
    assert delete_groups(groups, "a", "unknown", "b", "a", version=version) == {
        "a": ErrorCode.NONE,
        "unknown": ErrorCode.GROUP_ID_NOT_FOUND,
        "b": ErrorCode.NONE,
    }
    assert list_groups(groups) == {}


def test_a_group_that_may_not_be_deleted_stays(groups):
    groups.permissions.deny(Operation.DELETE, "a")
    assert delete_groups(groups, "a", "b") == {
        "a": ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "b": ErrorCode.NONE,
    }
    assert list_groups(groups).keys() == {"a"}
