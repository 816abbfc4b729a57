"""The null broker acknowledges every batch and stores none."""

from __future__ import annotations

import pytest

from bench.processes import MeasuredBroker
from bench.raw_driver import BATCHES, drive
from bench.tidemill_broker import NULL_COMMAND, TidemillSubject
from bench.topics import create_topics
from bench.wire_client import end_offset_sum


@pytest.mark.slow
@pytest.mark.e2e
def test_batches_are_acknowledged_and_none_is_kept(tmp_path):
    broker = MeasuredBroker(TidemillSubject(NULL_COMMAND, name="nothing"), tmp_path / "data")
    broker.start()
    try:
        config = {"tidemill.flush": "os"}
        create_topics(broker.address, ["t"], partitions=1, config=config)
        result = drive(
            broker.address, "t", BATCHES["16k"], connections=1, partitions=1, seconds=0.2
        )
        assert result.records > 0
        assert end_offset_sum(broker.address, "t", 1) == 0
    finally:
        broker.stop()
