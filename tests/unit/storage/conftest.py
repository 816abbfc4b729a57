"""Fixtures that most tests of storage use."""

from __future__ import annotations

import pytest

from tidemill.testing.sim.disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()
