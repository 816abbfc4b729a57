from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.handlers.groups.heartbeat import HANDLER
from tidemill.wire.generated.heartbeat import HeartbeatRequest


@pytest.mark.parametrize(
    ("code", "heard"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_only_a_coordinator_that_loads_answers_heartbeats_without_an_error(code, heard):
    assert HANDLER.refuse(HeartbeatRequest(), KafkaError(code)).error_code == heard
