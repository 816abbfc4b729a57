"""The metrics of transactions."""

from __future__ import annotations

import pytest

from tests.unit.server.transaction_requests import (
    Producer,
    coordinate_transactions,
    let_markers_be_written,
)
from tidemill.server.metrics.transaction_metrics import count_transactions, measure_oldest_s


@pytest.fixture
def producer(broker):
    coordinate_transactions(broker)
    broker.make_topic("orders", 1)
    made = Producer(broker)
    made.init()
    return made


def test_transactional_ids_are_counted_by_state(broker, producer):
    assert count_transactions(broker.services) == {"Empty": 1}
    Producer(broker, "other").init()
    producer.add("orders", 0)
    assert count_transactions(broker.services) == {"Empty": 1, "Ongoing": 1}
    producer.end()
    assert count_transactions(broker.services) == {"Empty": 1, "PrepareCommit": 1}
    let_markers_be_written(broker)
    assert count_transactions(broker.services) == {"Empty": 1, "CompleteCommit": 1}


def test_the_age_of_the_oldest_transaction_counts_until_it_is_complete(broker, producer):
    assert measure_oldest_s(broker.services) == 0
    producer.add("orders", 0)
    broker.clock.now_ms += 5_000
    other = Producer(broker, "other")
    other.init()
    other.add("orders", 0)
    broker.clock.now_ms += 2_000
    assert measure_oldest_s(broker.services) == 7
    producer.end()
    assert measure_oldest_s(broker.services) == 7
    let_markers_be_written(broker)
    assert measure_oldest_s(broker.services) == 2
    other.end(is_commit=False)
    let_markers_be_written(broker)
    assert measure_oldest_s(broker.services) == 0
