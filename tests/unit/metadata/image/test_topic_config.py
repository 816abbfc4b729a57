from __future__ import annotations

import pytest

from tidemill.core.config.broker_config import BrokerConfig, broker_config
from tidemill.core.config.keys import options_of
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.topic_config import (
    AlterOp,
    TopicConfig,
    altered_overrides,
    checked_overrides,
    resolve,
    topic_defaults,
)
from tidemill.metadata.image.topic_keys import TOPIC_KEYS, Effect

KAFKA_4_3_TOPIC_KEYS = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.downconversion.enable",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


def refusal(overrides: dict[str, str | None]) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        checked_overrides(overrides)
    return refused.value


def test_every_topic_key_of_kafka_is_known():
    assert set(KAFKA_4_3_TOPIC_KEYS) <= set(TOPIC_KEYS)


def test_a_key_that_does_not_work_says_why():
    for key in TOPIC_KEYS.values():
        assert (key.effect is Effect.WORKS) == (key.reason == ""), key.name


def test_every_key_that_works_is_a_field_of_the_topic_config():
    working = {key.name for key in TOPIC_KEYS.values() if key.effect is Effect.WORKS}
    fields = {name.replace("_", ".") for name in TopicConfig.__dataclass_fields__}
    assert working == fields


def test_every_default_is_a_legal_value():
    for key in TOPIC_KEYS.values():
        rendered = key.option.render(key.option.default)
        if rendered:
            assert checked_overrides({key.name: rendered}) == {key.name: rendered}


def test_broker_keys_have_the_same_defaults_as_the_topic_keys_they_set():
    broker = {made.key: made.default for made in options_of(BrokerConfig).values()}
    for key in TOPIC_KEYS.values():
        if key.broker_key:
            assert broker[key.broker_key] == key.option.default, key.name


def test_a_topic_without_overrides_shares_the_defaults():
    defaults = topic_defaults(broker_config())
    assert defaults == TopicConfig()
    assert resolve({}, defaults) is defaults


def test_a_broker_key_changes_the_default_of_topics():
    defaults = topic_defaults(broker_config(flags=["log.retention.ms=5", "tidemill.flush=os"]))
    assert (defaults.retention_ms, defaults.flush_group) == (5, False)
    assert resolve({"retention.ms": "7"}, defaults).retention_ms == 7


def test_overrides_are_resolved_to_typed_values():
    overrides = checked_overrides(
        {
            "retention.ms": "-1",
            "message.timestamp.type": "LogAppendTime",
            "unclean.leader.election.enable": "True",
            "preallocate": "true",
        }
    )
    assert overrides["unclean.leader.election.enable"] == "true"
    config = resolve(overrides, TopicConfig())
    assert config.retention_ms == -1
    assert config.log_append_time
    assert config.unclean_leader_election_enable


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("retention.ms", "-2", "a whole number from -1"),
        ("retention.ms", "soon", "a whole number from -1"),
        ("segment.bytes", "10", "a whole number from 1024"),
        ("min.insync.replicas", "0", "a whole number from 1"),
        ("compression.type", "brotli", "one of producer, uncompressed"),
        ("tidemill.flush", "never", "one of group, os"),
        ("cleanup.policy", "compact,purge", "of delete, compact"),
        ("cleanup.policy", "", "needs a value"),
        ("remote.storage.enable", "true", "no tiered storage"),
        ("max.message.bytes", None, "needs a value"),
    ],
)
def test_a_bad_value_is_refused_with_the_reason(name, text, said):
    error = refusal({name: text})
    assert error.code is ErrorCode.INVALID_CONFIG
    assert name in error.detail
    assert said in error.detail


def test_T21_an_unknown_key_is_INVALID_CONFIG():
    error = refusal({"retention.milliseconds": "1"})
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "unknown topic key" in error.detail


@pytest.mark.parametrize("name", ["log.dirs", "sasl.jaas.config", "metric.reporters", "a" * 30_000])
def test_S35_no_key_outside_the_table_is_accepted(name):
    error = refusal({name: "file:///etc/passwd"})
    assert error.code is ErrorCode.INVALID_CONFIG
    assert len(error.detail) < 200


def test_a_flood_of_keys_is_refused_as_a_whole():
    assert "more than" in refusal({f"k{n}": "" for n in range(1000)}).detail


def test_T57_set_and_delete_change_single_keys():
    before = {"retention.ms": "5", "segment.ms": "9"}
    changes = [("retention.ms", AlterOp.SET, "6"), ("segment.ms", AlterOp.DELETE, None)]
    assert altered_overrides(before, changes) == {"retention.ms": "6"}


def test_T57_append_and_subtract_change_lists():
    name = "leader.replication.throttled.replicas"
    appended = altered_overrides({name: "0:1"}, [(name, AlterOp.APPEND, "0:1,1:1")])
    assert appended == {name: "0:1,1:1"}
    assert altered_overrides(appended, [(name, AlterOp.SUBTRACT, "0:1")]) == {name: "1:1"}


def test_T57_appending_the_default_keeps_it_once():
    changed = altered_overrides({}, [("cleanup.policy", AlterOp.APPEND, "delete")])
    assert changed == {"cleanup.policy": "delete"}


@pytest.mark.parametrize(
    ("text", "deletes", "compacts"),
    [
        ("delete", True, False),
        ("compact", False, True),
        ("compact,delete", True, True),
        ("delete,compact", True, True),
    ],
)
def test_F26_both_cleanup_policies_can_be_set(text, deletes, compacts):
    config = resolve(checked_overrides({"cleanup.policy": text}), TopicConfig())
    assert (config.deletes, config.compacts) == (deletes, compacts)


def test_F26_the_keys_of_compaction_are_resolved():
    overrides = {
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "5",
        "min.compaction.lag.ms": "6",
        "max.compaction.lag.ms": "7",
    }
    config = resolve(checked_overrides(overrides), TopicConfig())
    assert config.min_cleanable_dirty_ratio == 0.1
    assert config.delete_retention_ms == 5
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (6, 7)


def test_appending_to_a_key_that_is_not_a_list_is_refused():
    with pytest.raises(KafkaError, match="not a list"):
        altered_overrides({}, [("retention.ms", AlterOp.APPEND, "1")])


def test_two_changes_of_one_key_are_refused():
    changes = [("retention.ms", AlterOp.SET, "1"), ("retention.ms", AlterOp.DELETE, None)]
    with pytest.raises(KafkaError) as refused:
        altered_overrides({}, changes)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
