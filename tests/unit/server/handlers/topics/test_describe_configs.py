from __future__ import annotations

import pytest

from tests.unit.server.config_requests import (
    BROKER,
    BROKER_LOGGER,
    GROUP,
    TOPIC,
    by_name,
    describe,
)
from tests.unit.server.one_broker import OneBroker
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import Option, OptionType, options_of
from tidemill.core.errors import ErrorCode
from tidemill.metadata.image import described_keys
from tidemill.metadata.image.topic_keys import TOPIC_KEYS
from tidemill.server.handlers.topics import describe_configs
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

VERSIONS = range(1, 5)
DYNAMIC_TOPIC, STATIC_BROKER, DEFAULT = 1, 4, 5


@pytest.mark.parametrize("version", VERSIONS)
def test_T56_a_topics_keys_come_with_value_and_source(broker, version):
    broker.make_topic("t", overrides={"retention.ms": "60000"})
    found = by_name(describe(broker, TOPIC, "t", version))
    assert set(found) == set(TOPIC_KEYS)
    own, inherited = found["retention.ms"], found["segment.bytes"]
    assert (own.value, own.config_source, own.read_only) == ("60000", DYNAMIC_TOPIC, False)
    assert (inherited.value, inherited.config_source) == ("1073741824", DEFAULT)


@pytest.mark.parametrize("version", VERSIONS)
def test_T56_types_and_documentation_come_from_version_3_on(broker, version):
    broker.make_topic("t")
    found = by_name(describe(broker, TOPIC, "t", version, documentation=version >= 3))
    key = found["retention.ms"]
    if version >= 3:
        assert key.config_type == OptionType.LONG
        assert key.documentation
    else:
        assert not key.config_type


def test_T56_documentation_and_synonyms_are_sent_only_on_request(broker):
    broker.make_topic("t")
    key = by_name(describe(broker, TOPIC, "t"))["retention.ms"]
    assert (key.documentation, key.synonyms) == (None, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_T56_synonyms_show_the_values_that_would_apply_otherwise(version):
    broker = OneBroker(**{"log.retention.ms": 5000})
    broker.make_topic("t", overrides={"retention.ms": "60000"})
    key = by_name(describe(broker, TOPIC, "t", version, synonyms=True))["retention.ms"]
    broker.close()
    assert [(one.name, one.value, one.source) for one in key.synonyms] == [
        ("retention.ms", "60000", DYNAMIC_TOPIC),
        ("log.retention.ms", "5000", STATIC_BROKER),
        ("log.retention.ms", str(14 * 24 * 3600 * 1000), DEFAULT),
    ]


def test_only_the_requested_keys_are_described(broker):
    broker.make_topic("t")
    keys = ["retention.ms", "no.such.key"]
    assert list(by_name(describe(broker, TOPIC, "t", keys=keys))) == ["retention.ms"]


def test_an_empty_list_of_keys_means_all(broker):
    broker.make_topic("t")
    assert len(describe(broker, TOPIC, "t", keys=[]).configs) == len(TOPIC_KEYS)


@pytest.mark.parametrize("version", VERSIONS)
def test_T56_an_unknown_topic_is_an_error(broker, version):
    result = describe(broker, TOPIC, "t", version)
    assert (result.error_code, result.configs) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


def test_S8_an_illegal_topic_name_is_an_error(broker):
    result = describe(broker, TOPIC, "../t")
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", VERSIONS)
def test_T56_a_broker_describes_itself(version):
    broker = OneBroker(**{"broker.rack": "north"})
    found = by_name(describe(broker, BROKER, "1", version))
    broker.close()
    assert set(found) == {option.key for option in options_of(BrokerConfig).values()}
    rack, partitions = found["broker.rack"], found["num.partitions"]
    assert (rack.value, rack.config_source, rack.read_only) == ("north", STATIC_BROKER, True)
    assert (partitions.value, partitions.config_source) == ("4", DEFAULT)


@pytest.mark.parametrize("name", ["2", "one", "01"])
def test_T56_a_broker_describes_no_other_broker(broker, name):
    assert describe(broker, BROKER, name).error_code == ErrorCode.INVALID_REQUEST


def test_the_defaults_of_all_brokers_are_empty(broker):
    assert by_name(describe(broker, BROKER, "")) == {}


def test_T56_sensitive_values_are_never_sent(broker, monkeypatch):
    secret = Option(
        key="a.secret", type=OptionType.PASSWORD, default="hidden", doc="", sensitive=True
    )
    monkeypatch.setattr(described_keys, "_BROKER_FIELDS", {"a.secret": ("broker_rack", secret)})
    key = by_name(describe(broker, BROKER, "1", synonyms=True))["a.secret"]
    assert (key.value, key.is_sensitive) == (None, True)
    assert [one.value for one in key.synonyms] == [None] * len(key.synonyms)


@pytest.mark.parametrize("version", VERSIONS)
def test_T56_an_unknown_group_has_the_defaults(broker, version):
    found = by_name(describe(broker, GROUP, "unknown", version))
    assert {(name, one.value, one.config_source) for name, one in found.items()} == {
        ("consumer.session.timeout.ms", "45000", DEFAULT),
        ("consumer.heartbeat.interval.ms", "5000", DEFAULT),
    }


def test_a_group_without_a_name_is_refused(broker):
    assert describe(broker, GROUP, "").error_code == ErrorCode.INVALID_REQUEST


def test_other_resources_are_refused_with_a_reason(broker):
    result = describe(broker, BROKER_LOGGER, "1")
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert str(BROKER_LOGGER) in result.error_message


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "t", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (GROUP, "g", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (BROKER, "1", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_each_type_of_resource_has_its_own_permission_and_error(broker, kind, name, code):
    broker.make_topic("t")
    broker.permissions.deny(Operation.DESCRIBE_CONFIGS)
    assert describe(broker, kind, name).error_code == code


def test_S11_an_answer_is_bounded_and_resources_beyond_it_are_refused(broker, monkeypatch):
    broker.make_topic("t")
    monkeypatch.setattr(describe_configs, "KEYS_PER_ANSWER_MAX", len(TOPIC_KEYS) + 1)
    wanted = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=None
    )
    one_key = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=["retention.ms"]
    )
    request = DescribeConfigsRequest(resources=[wanted, wanted, one_key])

    answers = broker.call(request, 4).results

    assert [(one.error_code, len(one.configs)) for one in answers] == [
        (ErrorCode.NONE, len(TOPIC_KEYS)),
        (ErrorCode.INVALID_REQUEST, 0),
        (ErrorCode.NONE, 1),
    ]


def test_S11_a_long_list_is_answered_in_slices(broker):
    wanted = DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
    count = 4 * describe_configs.RESOURCES_PER_SLICE
    assert broker.turns_of(DescribeConfigsRequest(resources=[wanted] * count), 4) >= 4
