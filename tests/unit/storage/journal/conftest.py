"""A data directory on a simulated disk whose rounds go to a small journal."""

from __future__ import annotations

import pytest

from tests.support.journaled_directory import JournaledDirectory
from tidemill.testing.sim.disk import SimDisk


@pytest.fixture
def journaled() -> JournaledDirectory:
    return JournaledDirectory(SimDisk())
