"""UpdateFeatures: levels change for all features of a request, or for none."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.core.limits import STRING_BYTES_MAX
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.update_features import FeatureUpdateKey, UpdateFeaturesRequest

NONE, REFUSED = ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION
UPGRADE, SAFE, UNSAFE = 1, 2, 3


def update(broker, *changes, version=2, validate_only=False):
    """The code, the message, and the results by feature."""
    updates = [
        FeatureUpdateKey(feature=name, max_version_level=level, **{_field(way): way})
        for name, level, way in changes
    ]
    request = UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only)
    answer = broker.call(request, version)
    results = {one.feature: (one.error_code, one.error_message) for one in answer.results}
    return answer.error_code, answer.error_message, results


def _field(way):
    return "allow_downgrade" if isinstance(way, bool) else "upgrade_type"


def level(broker, name="transaction.version"):
    return broker.image.features.level_of(name)


@pytest.mark.parametrize("way", [SAFE, UNSAFE])
def test_a_level_goes_down_and_up_again(broker, way):
    assert update(broker, ("transaction.version", 1, way)) == (NONE, None, {})
    assert level(broker) == 1
    assert update(broker, ("transaction.version", 2, UPGRADE)) == (NONE, None, {})
    assert level(broker) == 2


def test_older_versions_of_the_request_have_a_result_for_each_feature(broker):
    done = {"transaction.version": (NONE, None)}
    assert update(broker, ("transaction.version", 1, SAFE), version=1) == (NONE, None, done)
    assert level(broker) == 1
    assert update(broker, ("transaction.version", 2, False), version=0) == (NONE, None, done)
    assert level(broker) == 2
    assert update(broker, ("transaction.version", 1, True), version=0) == (NONE, None, done)
    assert level(broker) == 1


def test_nothing_changes_if_only_an_answer_is_wanted(broker):
    change = "transaction.version", 1, SAFE
    assert update(broker, change, validate_only=True) == (NONE, None, {})
    assert level(broker) == 2


def test_one_refusal_refuses_the_request_and_says_why(broker):
    changes = ("transaction.version", 1, SAFE), ("metadata.version", 31, UPGRADE)
    code, message, _ = update(broker, *changes)
    assert code == REFUSED
    assert message.startswith("metadata.version cannot be 31: the controller runs ")
    code, _, results = update(broker, *changes, version=1)
    assert code == NONE
    assert results["metadata.version"] == (REFUSED, message)
    because = "transaction.version was not changed, because metadata.version was refused"
    assert results["transaction.version"] == (REFUSED, because)
    assert level(broker) == 2


def test_a_member_that_is_away_is_named(broker):
    broker.store.expire(broker.join_broker(7))
    broker.run(broker.cluster.catch_up())
    code, message, _ = update(broker, ("transaction.version", 1, SAFE))
    assert code == REFUSED
    assert "broker 7 is away" in message


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("transaction.version", 1, 4)], REFUSED),
        ([("transaction.version", 1, 0)], REFUSED),
        ([("transaction.version", 1, SAFE)] * 2, ErrorCode.INVALID_REQUEST),
        ([(f"f{n}", 1, UPGRADE) for n in range(101)], ErrorCode.INVALID_REQUEST),
        ([("f" * STRING_BYTES_MAX, 1, UPGRADE)], ErrorCode.INVALID_REQUEST),
        ([("f" * STRING_BYTES_MAX, 1, 4)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_whole(broker, changes, code):
    for version in (1, 2):
        assert update(broker, *changes, version=version)[0] == code
    assert level(broker) == 2


def test_who_may_not_alter_the_cluster_changes_no_level(broker):
    broker.permissions.deny(Operation.ALTER)
    code, _, _ = update(broker, ("transaction.version", 1, SAFE))
    assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert level(broker) == 2


def test_another_broker_passes_the_request_on(broker):
    broker.depose()
    code, _, _ = update(broker, ("transaction.version", 1, SAFE))
    assert code == ErrorCode.NOT_CONTROLLER  # the controller of this test answers nobody
