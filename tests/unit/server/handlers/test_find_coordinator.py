"""FindCoordinator is offered, and says clearly that nobody is there."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest


@pytest.mark.parametrize("version", range(4))
def test_a_group_has_no_coordinator_yet(broker, version):
    answer = broker.call(FindCoordinatorRequest(key="group"), version)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answer.node_id == -1


@pytest.mark.parametrize("version", range(4, 7))
def test_a_transaction_is_refused_for_good_with_the_reason(broker, version):
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"])
    answer = broker.call(request, version)
    codes = {one.key: ErrorCode(one.error_code) for one in answer.coordinators}
    assert codes == dict.fromkeys("ab", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert "transactions" in answer.coordinators[0].error_message


def test_an_unknown_key_type_is_an_invalid_request(broker):
    request = FindCoordinatorRequest(key_type=9, coordinator_keys=["a"])
    assert broker.call(request, 4).coordinators[0].error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(4, 7))
def test_no_key_has_no_answer(broker, version):
    assert broker.call(FindCoordinatorRequest(), version).coordinators == []
