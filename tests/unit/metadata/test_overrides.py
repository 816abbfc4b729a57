"""What was set at run time for brokers and groups: kept in the store, followed by every broker."""

from __future__ import annotations

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.metadata.controller import page_writer
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.overrides import (
    ALL_BROKERS,
    StoredOverrides,
    broker_owner,
    group_owner,
)
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.rules.topic_planner import TopicSpec

RETENTION = "log.retention.ms"
SESSION = "consumer.session.timeout.ms"


def change(owner, *pairs):
    return OverrideChange(owner=owner, changes=[(key, AlterOp.SET, value) for key, value in pairs])


async def put(cluster, owner, key, value):
    (result,) = await cluster.alter_overrides([change(owner, (key, value))])
    assert result.code is ErrorCode.NONE, result.detail


async def store(small, owner, **values):
    """Write settings as another version would, while no broker runs."""
    await small.start(0)
    small.crash(0)
    keys = {key.replace("_", "."): text for key, text in values.items()}
    value = nodes.settings_value(1, {owner: StoredOverrides(keys)})
    await small.mend(nodes.SETTINGS, stored_fields.dump(value))


def stored(small):
    node = small.server.get(nodes.SETTINGS)
    return nodes.decode_settings(node.value)[1]


def retention_ms(cluster):
    return cluster.live.current.topic_defaults.log_retention_ms


def test_a_restarted_broker_has_what_was_set(run):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t")])
        await put(cluster, ALL_BROKERS, RETENTION, "5")
        await put(cluster, group_owner("g"), SESSION, "60000")
        small.crash(0)
        (cluster,) = await small.start(0, unclean=True)
        assert retention_ms(cluster) == 5
        assert cluster.image.topics["t"].config.retention_ms == 5
        assert cluster.image.overrides_of(group_owner("g")) == {SESSION: "60000"}

    run(scenario())


def test_every_broker_follows_what_is_set_for_all_and_only_its_own_beside(run):
    async def scenario():
        small = SmallCluster()
        first, second = await small.start(0, 1)
        await first.create_topics([TopicSpec(name="t")])
        await put(first, ALL_BROKERS, RETENTION, "5")
        await put(first, broker_owner(1), RETENTION, "7")
        await small.catch_up()
        assert (retention_ms(first), retention_ms(second)) == (5, 7)
        assert second.image.topics["t"].config.retention_ms == 7
        delta = small.members[0].deltas[-1]
        assert (delta.overrides_changed, delta.topics_changed) == ((broker_owner(1),), ())

    run(scenario())


def test_T22_a_change_is_in_force_and_told_before_the_call_returns(run):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await cluster.create_topics([TopicSpec(name="t"), TopicSpec(name="u")])
        small.notices_held = True
        await put(cluster, ALL_BROKERS, RETENTION, "5")
        delta = small.members[0].deltas[-1]
        assert delta.overrides_changed == (ALL_BROKERS,)
        assert delta.topics_changed == ("t", "u")
        assert retention_ms(cluster) == 5

    run(scenario())


def test_only_the_controller_makes_changes_and_another_broker_checks_its_own(run):
    async def scenario():
        small = SmallCluster("socket.request.max.bytes=2000000")
        _, second = await small.start(0, 1)
        with pytest.raises(KafkaError) as refused:
            await put(second, ALL_BROKERS, RETENTION, "5")
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        (fits,) = await second.check_overrides([change(broker_owner(1), (RETENTION, "5"))])
        assert fits.code is ErrorCode.NONE
        too_large = change(broker_owner(1), ("message.max.bytes", "3000000"))
        (refusal,) = await second.check_overrides([too_large])
        assert refusal.code is ErrorCode.INVALID_CONFIG
        assert not stored(small)

    run(scenario())


def test_the_last_key_that_is_removed_takes_its_owner_with_it(run):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await put(cluster, ALL_BROKERS, RETENTION, "5")
        removal = OverrideChange(owner=ALL_BROKERS, changes=[(RETENTION, AlterOp.DELETE, None)])
        await cluster.alter_overrides([removal])
        assert stored(small) == {}
        await put(cluster, ALL_BROKERS, RETENTION, "6")
        assert retention_ms(cluster) == 6

    run(scenario())


def test_a_store_that_does_not_answer_changes_nothing_here(run):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        small.server.suspend(small.members[0].coord)
        with pytest.raises(KafkaError) as refused:
            await put(cluster, ALL_BROKERS, RETENTION, "5")
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert cluster.live.current is cluster.live.static

    run(scenario())


@pytest.mark.parametrize(
    ("owner", "key", "value"),
    [
        (ALL_BROKERS, "key_of_later", "1"),
        (ALL_BROKERS, "data_dir", "/elsewhere"),
        (ALL_BROKERS, "log_segment_bytes", "-1"),
        (broker_owner(0), "num_partitions", "3"),
        (group_owner("g"), "share_auto_offset_reset", "latest"),
    ],
)
def test_a_stored_key_that_this_version_does_not_know_is_reported_ignored_and_kept(
    run, owner, key, value
):
    async def scenario():
        small = SmallCluster()
        await store(small, owner, **{key: value, "log_retention_ms": "5"})
        (cluster,) = await small.start(0)
        assert any(key.replace("_", ".") in one for one in small.members[0].alarms)
        if owner.kind == "broker":
            assert cluster.image.overrides_of(owner) == {RETENTION: "5"}
            assert retention_ms(cluster) == 5
        else:
            assert cluster.image.overrides_of(owner) == {}
        await put(cluster, group_owner("other"), SESSION, "50000")
        assert stored(small)[owner][key.replace("_", ".")] == value

    run(scenario())


def test_a_stored_key_that_no_longer_fits_the_file_is_reported_and_ignored(run):
    async def scenario():
        small = SmallCluster("socket.request.max.bytes=2000000")
        await store(small, ALL_BROKERS, message_max_bytes="3000000", log_retention_ms="5")
        (cluster,) = await small.start(0)
        assert any("message.max.bytes" in one for one in small.members[0].alarms)
        assert cluster.live.cluster_overrides == {RETENTION: "5"}
        assert retention_ms(cluster) == 5
        assert cluster.live.current.topic_defaults.message_max_bytes < 2_000_000

    run(scenario())


@pytest.mark.parametrize(
    "value",
    [
        b"?",
        b'{"v":1,"seq":1,"broker":{},"group":5}',
        b'{"v":1,"seq":1,"broker":{"":{"log.retention.ms":5}},"group":{}}',
        b'{"v":1,"seq":"1","broker":{},"group":{}}',
        b'{"v":9,"seq":1,"broker":{},"group":{}}',
    ],
)
def test_S46_bad_settings_leave_the_configuration_as_it_was_and_are_not_written(run, value):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await put(cluster, ALL_BROKERS, RETENTION, "7")
        await small.put(nodes.SETTINGS, value)
        await small.catch_up()
        assert any(nodes.SETTINGS in one for one in small.members[0].alarms)
        assert retention_ms(cluster) == 7
        with pytest.raises(StoreUnavailable):
            await put(cluster, ALL_BROKERS, RETENTION, "5")
        assert retention_ms(cluster) == 7
        assert small.server.get(nodes.SETTINGS).value == value

    run(scenario())


def test_settings_that_are_too_long_can_be_made_shorter(run, monkeypatch):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        await put(cluster, ALL_BROKERS, RETENTION, "500000")
        monkeypatch.setattr(page_writer, "PAGE_STORED_BYTES_MAX", 10)
        await put(cluster, ALL_BROKERS, RETENTION, "5")
        with pytest.raises(KafkaError):
            await put(cluster, ALL_BROKERS, RETENTION, "500000")

    run(scenario())


def test_more_settings_than_fit_are_refused(run, monkeypatch):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        monkeypatch.setattr(page_writer, "PAGE_STORED_BYTES_MAX", 10)
        with pytest.raises(KafkaError) as refused:
            await put(cluster, ALL_BROKERS, RETENTION, "5")
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert cluster.live.current is cluster.live.static

    run(scenario())


@pytest.mark.parametrize(
    "owner",
    [
        ALL_BROKERS,
        broker_owner(7),
        *map(group_owner, ["g", "~all", ".", "..", "a/b", "100%", "%2E", "ü", "\x00", ""]),
    ],
)
def test_every_owner_survives_the_round_trip(owner):
    keys = {SESSION: "60000"}
    value = stored_fields.dump(nodes.settings_value(4, {owner: StoredOverrides(keys)}))
    assert nodes.decode_settings(value)[:2] == (4, {owner: keys})


def test_S46_a_key_of_a_broker_that_was_set_anew_has_the_new_value_on_every_broker(run):
    """Another version has stored a value for it that this one does not know."""

    async def scenario():
        small = SmallCluster()
        await store(small, ALL_BROKERS, log_retention_ms="for ever")
        clusters = await small.start(0, 1)
        await put(clusters[0], ALL_BROKERS, RETENTION, "5")
        await small.catch_up()
        assert stored(small)[ALL_BROKERS] == {RETENTION: "5"}
        assert [retention_ms(one) for one in clusters] == [5, 5]

    run(scenario())
