from __future__ import annotations

from tidemill.core.config.group_config import GroupConfig
from tidemill.metadata.image.group_keys import consumer_timeouts

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_a_group_without_keys_of_its_own_has_the_brokers_timeouts():
    config = GroupConfig(
        group_consumer_session_timeout_ms=9_000, group_consumer_heartbeat_interval_ms=300
    )
    assert consumer_timeouts({}, config) == (9_000, 300)


def test_each_key_of_a_group_replaces_one_timeout():
    config = GroupConfig()
    assert consumer_timeouts({SESSION: "50000"}, config) == (50_000, 5_000)
    assert consumer_timeouts({HEARTBEAT: "6000"}, config) == (45_000, 6_000)


def test_a_member_is_never_told_to_wait_longer_than_its_session_lasts():
    later = GroupConfig(
        group_consumer_session_timeout_ms=90_000, group_consumer_heartbeat_interval_ms=60_000
    )
    assert consumer_timeouts({SESSION: "50000"}, later) == (50_000, 25_000)
