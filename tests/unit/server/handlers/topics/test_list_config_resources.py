from __future__ import annotations

import pytest

from tests.unit.server.config_requests import BROKER, BROKER_LOGGER, GROUP, SET, TOPIC, alter
from tidemill.core.errors import ErrorCode
from tidemill.server.handlers.topics import list_config_resources
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.list_config_resources import ListConfigResourcesRequest

CLIENT_METRICS = 16


def listed(broker, *types, version=1):
    answer = broker.call(ListConfigResourcesRequest(resource_types=list(types)), version)
    assert answer.error_code == ErrorCode.NONE
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


def test_topics_and_brokers_have_a_configuration(broker):
    broker.make_topic("b")
    broker.make_topic("a")
    assert listed(broker) == [(TOPIC, "a"), (TOPIC, "b"), (BROKER, "1")]


def test_a_group_is_listed_once_it_has_a_key_of_its_own(broker):
    change = ("consumer.session.timeout.ms", SET, "50000")
    assert alter(broker, change, kind=GROUP, name="g").error_code == ErrorCode.NONE
    assert listed(broker, GROUP) == [(GROUP, "g")]


@pytest.mark.parametrize("kind", [BROKER_LOGGER, CLIENT_METRICS, GROUP])
def test_types_without_resources_are_empty_lists(broker, kind):
    broker.make_topic("a")
    assert listed(broker, kind) == []


def test_only_the_named_types_are_listed(broker):
    broker.make_topic("a")
    assert listed(broker, BROKER) == [(BROKER, "1")]


def test_version_0_lists_client_metrics_only(broker):
    broker.make_topic("a")
    assert listed(broker, version=0) == []


def test_a_type_that_does_not_exist_is_refused(broker):
    answer = broker.call(ListConfigResourcesRequest(resource_types=[3]), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("version", [0, 1])
def test_the_list_is_for_those_who_may_describe_the_clusters_configuration(broker, version):
    broker.permissions.deny(Operation.DESCRIBE_CONFIGS, "kafka-cluster")
    answer = broker.call(ListConfigResourcesRequest(), version)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_S11_a_long_list_is_made_in_slices(broker, monkeypatch):
    monkeypatch.setattr(list_config_resources, "RESOURCES_PER_SLICE", 3)
    for n in range(10):
        broker.make_topic(f"t{n}")
    assert broker.turns_of(ListConfigResourcesRequest(), 1) >= 2
