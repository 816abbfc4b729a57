"""What most tests of the storage layer start with."""

from __future__ import annotations

import pytest

from tidemill.testing.sim_disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()
