from __future__ import annotations

from tidemill.core.config.broker_config import broker_config
from tidemill.core.config.live_config import LiveConfig
from tidemill.metadata.image.described_keys import ConfigSource, describe_topic
from tidemill.metadata.image.topic_keys import TOPIC_KEYS


def test_T56_a_description_tells_where_a_value_comes_from():
    config = LiveConfig(broker_config(flags=["log.retention.ms=7"]))
    described = {one.option.key: one for one in describe_topic({"segment.ms": "9"}, config)}
    assert len(described) == len(TOPIC_KEYS)
    assert described["segment.ms"].source is ConfigSource.DYNAMIC_TOPIC
    assert described["retention.ms"].source is ConfigSource.STATIC_BROKER
    assert described["retention.ms"].synonyms == [
        ("log.retention.ms", "7", ConfigSource.STATIC_BROKER),
        ("log.retention.ms", "1209600000", ConfigSource.DEFAULT),
    ]
    assert described["flush.ms"].source is ConfigSource.DEFAULT
    assert "stored without effect" in described["preallocate"].doc


def test_T56_some_keys_can_be_described_alone():
    described = describe_topic(
        {}, LiveConfig(broker_config()), ["segment.ms", "nonsense", "flush.ms"]
    )
    assert [one.option.key for one in described] == ["flush.ms", "segment.ms"]
