"""How a broker divides its file descriptors."""

from __future__ import annotations

import pytest

from tidemill.core.config.descriptor_plan import plan_descriptors
from tidemill.core.errors import UserError


def test_S13_descriptors_are_shared_between_files_and_connections():
    plan = plan_descriptors(1 << 20, files_max=4_096)
    assert plan == ((1 << 20) - 4_096 - 256 - 256, 256, 4_096)
    small = plan_descriptors(1024, files_max=4_096)
    assert small.files == 256
    assert small.connections + small.internal == 1024 - 256 - 256
    assert small.internal == 64


def test_too_few_descriptors_are_refused():
    with pytest.raises(UserError, match="ulimit -n"):
        plan_descriptors(256, files_max=4_096)
