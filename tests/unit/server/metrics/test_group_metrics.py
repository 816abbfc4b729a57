"""The metrics of consumer groups."""

from __future__ import annotations

from tests.unit.server.group_requests import commit
from tidemill.server.metrics import group_metrics
from tidemill.server.metrics.group_metrics import Lag, count_groups, count_rebalances, measure_lag
from tidemill.wire.generated.find_coordinator import FindCoordinatorRequest


def prepare(broker):
    broker.make_topic("t", 1)
    broker.call(FindCoordinatorRequest(key="g"), 3)
    for time_ms in range(7):
        broker.append("t", time_ms)


def test_groups_are_counted_by_state(broker):
    prepare(broker)
    assert count_groups(broker.services) == {}
    commit(broker, 5)
    assert count_groups(broker.services) == {"Empty": 1}
    assert count_rebalances(broker.services) == 0


def test_lag_is_the_number_of_records_that_a_group_has_not_read(broker):
    prepare(broker)
    commit(broker, 5, group_id="a")
    commit(broker, 0, group_id="b")
    assert measure_lag(broker.services) == Lag(records_max=7, records_sum=9)


def test_an_offset_beyond_the_end_has_no_lag(broker):
    prepare(broker)
    commit(broker, 100)
    assert measure_lag(broker.services) == Lag(0, 0)


def test_a_negative_offset_has_no_lag(broker):
    prepare(broker)
    commit(broker, -1, group_id="a")
    commit(broker, -2, group_id="b")
    assert measure_lag(broker.services) == Lag(0, 0)


def test_S38_too_many_offsets_are_not_compared(broker, monkeypatch):
    prepare(broker)
    commit(broker, 5)
    monkeypatch.setattr(group_metrics, "OFFSETS_MAX", 0)
    assert measure_lag(broker.services) == Lag(0, 0)
