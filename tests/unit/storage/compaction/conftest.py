"""An empty compacted log on the simulated disk."""

from __future__ import annotations

import pytest

from tests.support.compacting import make_log
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.testing.sim.disk import SimDisk


@pytest.fixture
def log(disk: SimDisk) -> FilePartitionLog:
    return make_log(disk)
