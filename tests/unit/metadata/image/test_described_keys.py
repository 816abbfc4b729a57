from __future__ import annotations

from uuid import UUID

from tidemill.core.config.broker_config import broker_config
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.ids import TopicId
from tidemill.metadata.image.described_keys import ConfigSource, describe_topic
from tidemill.metadata.image.metadata_image import TopicImage
from tidemill.metadata.image.topic_config import TopicConfig, resolve
from tidemill.metadata.image.topic_keys import TOPIC_KEYS

SEGMENT = {"segment.ms": "9"}


def topic(overrides: dict[str, str], stored_min_isr: int = 0) -> TopicImage:
    return TopicImage(
        name="t",
        topic_id=TopicId(UUID(int=1)),
        partitions=(),
        overrides=overrides,
        config=resolve(overrides, TopicConfig()),
        stored_min_isr=stored_min_isr,
    )


def test_T56_a_description_tells_where_a_value_comes_from():
    config = LiveConfig(broker_config(flags=["log.retention.ms=7"]))
    described = {one.option.key: one for one in describe_topic(topic(SEGMENT), config)}
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
        topic({}), LiveConfig(broker_config()), ["segment.ms", "nonsense", "flush.ms"]
    )
    assert [one.option.key for one in described] == ["flush.ms", "segment.ms"]


def test_T56_a_minimum_that_a_topic_has_kept_is_described_as_its_own():
    kept = topic({}, stored_min_isr=2)
    (described,) = describe_topic(kept, LiveConfig(broker_config()), ["min.insync.replicas"])
    assert (described.value, described.source) == ("2", ConfigSource.DYNAMIC_TOPIC)
    same = topic({}, stored_min_isr=1)
    (described,) = describe_topic(same, LiveConfig(broker_config()), ["min.insync.replicas"])
    assert (described.value, described.source) == ("1", ConfigSource.DEFAULT)
