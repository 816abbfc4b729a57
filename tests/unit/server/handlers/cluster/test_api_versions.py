"""ApiVersions: the served APIs, from the list of handlers."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import Peer
from tidemill.core.errors import ErrorCode
from tidemill.metadata.features.level_changes import LevelChange, Way
from tidemill.server.handlers import HANDLERS
from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.api_versions import ApiVersionsRequest


def _ranges(broker, version=4):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    answer = broker.call(request, version)
    assert answer.error_code == ErrorCode.NONE
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_every_handler_for_clients_is_advertised_in_every_version(broker, version):
    ranges = _ranges(broker, version)
    assert set(ranges) == {int(handler.api_key) for handler in HANDLERS if not handler.is_internal}


def test_T3_produce_is_advertised_from_zero(broker):
    assert _ranges(broker)[ApiKey.PRODUCE] == (0, 13)


@pytest.mark.parametrize("name", ["", "-java", "spaces are not allowed", "tab\t", "a" * 10 + "!"])
def test_T4_bad_client_software_is_an_invalid_request(broker, name):
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
    assert broker.call(request, 3).error_code == ErrorCode.INVALID_REQUEST


def test_T4_versions_without_client_software_are_not_checked(broker):
    assert broker.call(ApiVersionsRequest(), 2).error_code == ErrorCode.NONE


def test_T12_the_offered_set_is_coherent_with_kafka_4(broker):
    """kafka-python derives the version of a broker from these."""
    ranges = _ranges(broker)
    assert ranges[ApiKey.PRODUCE][1] == 13
    assert ranges[ApiKey.LIST_OFFSETS][1] == 11
    assert ranges[ApiKey.DESCRIBE_LOG_DIRS][1] == 5
    for key, (_, last) in ranges.items():
        assert last <= API_SPECS[key].version_max


@pytest.mark.parametrize(("version", "lowest"), [(3, 1), (4, 0)])
def test_T13_ranges_are_of_the_software_and_begin_with_0_from_version_4_on(broker, version, lowest):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = broker.call(request, version)
    assert {(one.name, one.min_version, one.max_version) for one in answer.supported_features} == {
        ("metadata.version", 30, 30),
        ("group.version", 1, 1),
        ("tidemill.version", 1, 2),
        ("transaction.version", lowest, 2),
    }
    assert _finalized(answer) == {
        "metadata.version": 30,
        "group.version": 1,
        "tidemill.version": 2,
        "transaction.version": 2,
    }
    assert not answer.zk_migration_ready


def _finalized(answer):
    for one in answer.finalized_features:
        assert one.min_version_level == one.max_version_level
    return {one.name: one.max_version_level for one in answer.finalized_features}


def _features(broker):
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = broker.call(request, 4)
    return answer.finalized_features_epoch, _finalized(answer)


@pytest.mark.parametrize("level", [0, 1])
def test_T13_a_lower_level_is_told_in_a_higher_epoch_and_0_is_not_listed(broker, level):
    before, levels = _features(broker)
    change = LevelChange("transaction.version", level, Way.SAFE_DOWNGRADE)
    assert not broker.run(broker.cluster.change_levels([change]))
    after, lowered = _features(broker)
    assert after > before >= 0
    kept = {name: one for name, one in levels.items() if name != "transaction.version"}
    assert lowered == (kept | {"transaction.version": 1} if level else kept)


def test_T13_the_epoch_stays_with_a_new_controller(broker):
    before = _features(broker)
    broker.depose()
    assert _features(broker) == before


def test_share_groups_are_not_advertised_until_they_work(broker):
    assert ApiKey.SHARE_FETCH not in _ranges(broker)


def test_apis_of_brokers_are_not_advertised_and_markers_are_for_administrators_too(broker):
    assert ApiKey.ALTER_PARTITION not in _ranges(broker)
    assert _ranges(broker)[ApiKey.WRITE_TXN_MARKERS] == (1, 2)
    assert _ranges(broker)[ApiKey.END_TXN] == (0, 5)


@pytest.mark.parametrize(
    ("name", "is_librdkafka"),
    [("librdkafka", True), ("confluent-kafka-python", True), ("apache-kafka-java", False)],
)
def test_a_client_that_is_built_on_librdkafka_is_known_by_its_name(broker, name, is_librdkafka):
    peer = Peer()
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    broker.call(request, 3, peer)
    assert peer.is_librdkafka == is_librdkafka
