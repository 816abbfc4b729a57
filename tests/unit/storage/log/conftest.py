"""The disk of one log: its parent directory is there."""

from __future__ import annotations

import pytest

from tidemill.testing.sim.disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/data")
    disk.sync_directory("/")
    return disk
