"""Features in a cluster: what is stored, who is let in, and who may raise a level."""

from __future__ import annotations

import json

import pytest

from tests.unit.metadata.small_cluster import SmallCluster
from tests.unit.metadata.three_brokers import TOPIC, partition
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.features.feature_levels import (
    BEFORE_FEATURES,
    OLDER_SOFTWARE,
    THIS_SOFTWARE,
    TIDEMILL_VERSION,
    TRANSACTION_VERSION,
    UNKNOWN_LEVELS,
    LevelRange,
    Software,
    first_levels,
)
from tidemill.metadata.features.level_changes import LevelChange, Way
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.overrides import ALL_BROKERS, DRAINING, broker_owner
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.override_writer import OverrideChange
from tidemill.metadata.store.coord import Put

RAISE = [LevelChange(TIDEMILL_VERSION, 2, Way.UPGRADE)]
LOWER_TRANSACTIONS = [LevelChange(TRANSACTION_VERSION, 1, Way.SAFE_DOWNGRADE)]
OLD_GENERATION = Software("0.0.9", {**THIS_SOFTWARE.ranges, TRANSACTION_VERSION: LevelRange(0, 1)})


def stored(small):
    node = small.server.get(nodes.SETTINGS)
    return None if node is None else nodes.decode_settings(node.value).features


async def replace_settings(small, value):
    """Put something else in the place of the settings; the head does not tell."""
    node = small.server.get(nodes.SETTINGS)
    session = small.server.session()
    await session.start()
    await session.multi([Put(nodes.SETTINGS, value, node.version)])
    await session.close()


def test_a_new_cluster_has_the_highest_levels_of_the_software_that_founds_it(run):
    async def scenario():
        small = SmallCluster()
        clusters = await small.start(0, 1)
        assert stored(small) == first_levels(THIS_SOFTWARE)
        for cluster in clusters:
            assert cluster.image.features == first_levels(THIS_SOFTWARE)
            assert cluster.may_act

    run(scenario())


def test_a_cluster_of_older_software_keeps_its_levels_and_stores_none(run):
    async def scenario():
        small = SmallCluster()
        (old,) = await small.start(0, software=OLDER_SOFTWARE)
        (new,) = await small.start(1)
        assert stored(small) is None
        assert old.may_act
        assert new.may_act
        assert new.image.features == BEFORE_FEATURES
        assert new.image.features_epoch == new.image.controller_epoch

    run(scenario())


def test_a_level_is_raised_only_after_the_last_old_broker_was_replaced(run):
    async def scenario():
        small = SmallCluster()
        await small.start(2, software=OLDER_SOFTWARE)
        await small.start(0, 1)
        small.crash(2)
        await small.catch_up()
        first, second = (small.members[one].cluster for one in (0, 1))
        assert first.is_controller
        away = await first.change_levels(RAISE)
        assert "broker 2 is away" in away[TIDEMILL_VERSION].detail
        await small.start(2, software=OLDER_SOFTWARE)
        too_old = await first.change_levels(RAISE)
        assert "broker 2 runs an older version" in too_old[TIDEMILL_VERSION].detail
        assert stored(small) is None
        small.crash(2)
        await small.start(2)
        before = first.image.features_epoch
        assert not await first.change_levels(RAISE, validate_only=True)
        assert stored(small) is None
        assert not await first.change_levels(RAISE)
        assert first.image.features.level_of(TIDEMILL_VERSION) == 2
        assert first.image.features_epoch > before
        await small.catch_up()
        assert second.image.features == first.image.features == stored(small)

    run(scenario())


def test_a_member_that_is_away_is_no_obstacle_once_it_is_unregistered(run):
    async def scenario():
        small = SmallCluster()
        first, _ = await small.start(0, 1, software=THIS_SOFTWARE)
        small.crash(1)
        await small.catch_up()
        assert await first.change_levels(LOWER_TRANSACTIONS)
        await first.unregister_broker(1)
        assert not await first.change_levels(LOWER_TRANSACTIONS)
        assert first.image.features.level_of(TRANSACTION_VERSION) == 1

    run(scenario())


@pytest.mark.parametrize("software", [OLDER_SOFTWARE, OLD_GENERATION])
def test_a_broker_that_is_too_old_stays_fenced_and_partitions_go_on_without_it(run, software):
    async def scenario():
        small = SmallCluster()
        clusters = await small.start(0, 1, 2)
        await clusters[0].create_topics([TOPIC])
        small.crash(1)
        await small.catch_up()
        (old,) = await small.start(1, software=software)
        assert not old.may_act
        lead = partition(clusters[0])
        assert (lead.leader, sorted(lead.isr)) == (2, [0, 2])
        (said,) = [one for one in small.members[0].alarms if "fenced" in one]
        lacks = "transaction.version" if software is OLD_GENERATION else "tidemill.version"
        assert said == (
            f"broker 1 runs {software.shown_version} and lacks {lacks} 2: upgrade it; until then "
            "it stays fenced"
        )
        (own,) = [one for one in small.members[1].alarms if "fenced" in one]
        assert own.startswith(said.partition(";")[0])
        small.crash(1)
        (new,) = await small.start(1)
        assert new.may_act

    run(scenario())


def test_a_broker_that_is_too_old_does_not_become_the_controller(run):
    async def scenario():
        small = SmallCluster()
        await small.start(0)
        (old,) = await small.start(1, software=OLD_GENERATION)
        small.crash(0)
        await small.catch_up()
        assert not old.is_controller
        assert old.image.controller_id == -1
        (back,) = await small.start(0)
        assert back.is_controller

    run(scenario())


def test_only_the_controller_changes_levels(run):
    async def scenario():
        small = SmallCluster()
        _, second = await small.start(0, 1)
        with pytest.raises(KafkaError) as refused:
            await second.change_levels(LOWER_TRANSACTIONS)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER

    run(scenario())


def test_levels_and_overrides_are_stored_together_and_survive_each_other(run):
    async def scenario():
        small = SmallCluster()
        (first,) = await small.start(0)
        change = OverrideChange(owner=ALL_BROKERS, changes=[(DRAINING, AlterOp.SET, "false")])
        await first.alter_overrides([change])
        await first.change_levels(LOWER_TRANSACTIONS)
        await first.alter_overrides(
            [OverrideChange(owner=ALL_BROKERS, changes=[("log.retention.ms", AlterOp.SET, "5000")])]
        )
        node = small.server.get(nodes.SETTINGS)
        found = nodes.decode_settings(node.value)
        assert found.overrides == {ALL_BROKERS: {DRAINING: "false", "log.retention.ms": "5000"}}
        assert found.features.level_of(TRANSACTION_VERSION) == 1
        small.crash(0)
        (again,) = await small.start(0)
        assert again.image.features == found.features

    run(scenario())


def test_software_without_features_does_not_read_settings_that_have_them():
    """It raises an alarm, and never writes a part that it cannot read."""
    value = stored_fields.dump(nodes.settings_value(1, {}, first_levels(THIS_SOFTWARE)))
    with pytest.raises(nodes.BadNode, match="a format that this version does not know"):
        stored_fields.load(nodes.SETTINGS, value)
    before = stored_fields.dump(nodes.settings_value(1, {}, BEFORE_FEATURES))
    assert stored_fields.load(nodes.SETTINGS, before)
    assert nodes.decode_settings(before).features == BEFORE_FEATURES


@pytest.mark.parametrize(
    "features",
    [
        None,
        {"epoch": -1, "levels": {}},
        {"epoch": 1},
        {"epoch": 1, "levels": {"a": "2"}},
        {"epoch": 1, "levels": {"a": 1 << 15}},
        {"epoch": 1, "levels": {"": 1}},
        {"epoch": 1, "levels": {"x" * 101: 1}},
        {"epoch": 1, "levels": {f"f{n}": 1 for n in range(101)}},
    ],
)
def test_S46_damaged_levels_change_nothing_and_raise_an_alarm(run, features):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        before = cluster.image.features
        damaged = {"v": 2, "seq": 2, "broker": {}, "group": {}, "features": features}
        await small.put(nodes.SETTINGS, json.dumps(damaged).encode())
        await small.catch_up()
        assert cluster.image.features is before
        assert any("/settings" in alarm for alarm in small.members[0].alarms)

    run(scenario())


def test_S46_nobody_takes_office_who_has_never_read_the_settings(run):
    async def scenario():
        small = SmallCluster()
        (first,) = await small.start(0)
        drained = OverrideChange(owner=broker_owner(0), changes=[(DRAINING, AlterOp.SET, "true")])
        assert [one.code for one in await first.alter_overrides([drained])] == [ErrorCode.NONE]
        good = small.server.get(nodes.SETTINGS).value
        small.crash(0)
        await replace_settings(small, b"?")
        (again,) = await small.start(0)
        assert not again.is_controller
        assert again.image.features is UNKNOWN_LEVELS
        assert again.image.features_epoch == -1
        assert small.server.get(nodes.SETTINGS).value == b"?"
        (old,) = await small.start(1, software=OLDER_SOFTWARE)
        assert not old.may_act
        assert [one for one in small.members[0].alarms if "controller" in one] == [
            "this broker does not become the controller: it cannot read /settings, which has the "
            "levels that the cluster has agreed on, and does not guess them; put the newest good "
            "copy back"
        ]
        await small.mend(nodes.SETTINGS, good)
        await small.catch_up()
        assert again.may_act
        assert again.is_controller
        assert again.image.features == first_levels(THIS_SOFTWARE)
        assert again.image.overrides_of(broker_owner(0)) == {DRAINING: "true"}
        assert not old.may_act

    run(scenario())


def test_S46_who_knows_the_settings_takes_office_although_they_are_damaged_since(run):
    async def scenario():
        small = SmallCluster()
        _, second = await small.start(0, 1)
        await replace_settings(small, b"?")
        small.crash(0)
        await small.catch_up()
        assert second.is_controller
        assert second.image.features == first_levels(THIS_SOFTWARE)
        (old,) = await small.start(2, software=OLDER_SOFTWARE)
        assert not old.may_act
        (back,) = await small.start(0)
        assert back.may_act
        assert back.image.features is UNKNOWN_LEVELS
        assert small.server.get(nodes.SETTINGS).value == b"?"

    run(scenario())


def test_S46_nobody_takes_office_who_has_read_older_settings_only(run):
    """The new ones may name a level that this broker's software does not have."""

    async def scenario():
        small = SmallCluster()
        _, second = await small.start(0, 1)
        await small.put(nodes.SETTINGS, b'{"v":3}')
        small.crash(0)
        await small.catch_up()
        assert not second.is_controller
        assert second.image.features == first_levels(THIS_SOFTWARE)

    run(scenario())


def test_S46_office_is_not_taken_on_settings_that_were_changed_unseen(run):
    async def scenario():
        small = SmallCluster()
        _, second = await small.start(0, 1)
        small.notices_held = True
        await small.put(nodes.SETTINGS, b'{"v":3}')
        small.notices_held = False
        small.crash(0)
        await small.catch_up()
        assert not second.is_controller

    run(scenario())
