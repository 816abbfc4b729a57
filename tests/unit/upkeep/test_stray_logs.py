"""Logs that a broker lost while it was down are removed, late and with care."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import pytest

from tests.support.directories import ORDERS, ORDERS_PATH, SMALL, TOPIC_ID, opened
from tests.unit.client.virtual_time import run_virtually
from tests.unit.metadata.small_cluster import SmallCluster
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.page import page_of
from tidemill.metadata.rules.topic_planner import TopicSpec
from tidemill.replication.pending_logs import PendingLogs
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.stray_logs import LOGS_PER_SLICE, REMOVAL_DELAY_S, StrayLogs

OTHER_ID = TopicId(UUID(int=8))


@pytest.fixture
def disk():
    disk = SimDisk()
    opened(disk).create_log(ORDERS, TOPIC_ID, SMALL)
    return disk.restart()


def removed_after(directory, seconds, known):
    """Whether the log of ORDERS is gone so long after the start."""

    async def scenario():
        task = asyncio.create_task(StrayLogs(directory, PendingLogs(), known).run())
        await asyncio.sleep(seconds)
        task.cancel()

    run_virtually(scenario())
    return ORDERS not in directory.topic_ids()


def test_a_log_without_a_topic_is_removed_with_its_files(disk):
    directory = opened(disk)
    assert removed_after(directory, REMOVAL_DELAY_S + 1, lambda: [(OTHER_ID, 0)])
    directory.settle_removals()
    assert directory.purge_slice(100)
    assert disk.list_names("/data") == [".lock", "meta"]


def test_a_log_of_a_replica_that_was_moved_away_is_removed(disk):
    assert removed_after(opened(disk), REMOVAL_DELAY_S + 1, lambda: [(TOPIC_ID, 1)])


def test_people_are_told_an_hour_before(disk, caplog):
    directory = opened(disk)
    with caplog.at_level(logging.WARNING):
        assert not removed_after(directory, REMOVAL_DELAY_S - 1, lambda: [])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"orders-0 (topic id {TOPIC_ID})" in record.getMessage()


def test_a_log_of_a_topic_that_exists_stays(disk, caplog):
    directory = opened(disk)
    assert not removed_after(directory, REMOVAL_DELAY_S + 1, lambda: [(TOPIC_ID, 0)])
    assert not caplog.records


def test_a_log_that_goes_before_the_image_is_whole_is_no_stray(disk, caplog):
    directory = opened(disk)

    def moved_away():
        directory.delete_log(ORDERS)
        return []

    answers = iter([lambda: None, moved_away])
    assert removed_after(directory, REMOVAL_DELAY_S - 1, lambda: next(answers)())
    assert not caplog.records


def test_nothing_is_removed_while_the_image_may_lack_a_topic(disk):
    directory = opened(disk)
    assert not removed_after(directory, 10 * REMOVAL_DELAY_S, lambda: None)


def test_a_topic_that_comes_back_within_the_hour_keeps_its_log(disk):
    directory = opened(disk)
    answers = iter([[], None, [(TOPIC_ID, 0)]])
    assert not removed_after(directory, 2 * REMOVAL_DELAY_S, lambda: next(answers))


def test_a_log_that_was_not_loaded_is_removed_too(disk):
    disk.fail("pread", "orders-0", times=1)
    directory = opened(disk)
    assert list(directory.report.failed) == [ORDERS]
    assert removed_after(directory, REMOVAL_DELAY_S + 1, lambda: [])
    directory.settle_removals()
    assert not disk.exists(ORDERS_PATH)


def test_a_replica_that_returns_while_others_are_removed_keeps_its_log(disk):
    directory = opened(disk)
    last = TopicPartition("orders", 3 * LOGS_PER_SLICE)
    for index in range(1, last.partition + 1):
        directory.create_log(TopicPartition("orders", index), TOPIC_ID, SMALL)

    def known():
        is_removing = len(directory.topic_ids()) <= last.partition
        return [(TOPIC_ID, last.partition)] if is_removing else []

    assert removed_after(directory, REMOVAL_DELAY_S + 1, known)
    assert list(directory.topic_ids()) == [last]


def test_a_new_topic_of_the_same_name_keeps_its_log(disk):
    directory = opened(disk)

    async def scenario():
        task = asyncio.create_task(
            StrayLogs(directory, PendingLogs(), lambda: [(OTHER_ID, 0)]).run()
        )
        await asyncio.sleep(1)
        directory.create_log(ORDERS, OTHER_ID, SMALL)
        await asyncio.sleep(REMOVAL_DELAY_S)
        assert task.done()

    run_virtually(scenario())
    assert directory.topic_id(ORDERS) == OTHER_ID


# --- when the image is complete ------------------------------------------------------------------


def test_a_member_that_has_read_everything_knows_all_topics(run):
    async def scenario():
        (cluster,) = await SmallCluster().start(0)
        (made,) = await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        await cluster.catch_up()
        assert cluster.own_logs() == {(made.topic_id, 0)}

    run(scenario())


def test_a_partition_of_other_brokers_is_not_among_the_own_ones(run):
    async def scenario():
        small = SmallCluster()
        cluster, other = await small.start(0, 1)
        spec = TopicSpec(name="t", assignments={0: [0], 1: [1]})
        (made,) = await cluster.create_topics([spec])
        await small.catch_up()
        assert cluster.own_logs() == {(made.topic_id, 0)}
        assert other.own_logs() == {(made.topic_id, 1)}

    run(scenario())


def test_a_broker_without_a_session_does_not_claim_to_know_all_topics(run):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        small.server.expire(small.members[0].coord)
        assert cluster.own_logs() is None

    run(scenario())


def test_a_topic_that_cannot_be_read_may_be_the_owner_of_any_log(run):
    async def scenario():
        small = SmallCluster()
        (cluster,) = await small.start(0)
        (made,) = await cluster.create_topics([TopicSpec(name="t", partitions=1)])
        await small.put(page_path(page_of(made.topic_id)), b"garbage")
        await small.catch_up()
        assert cluster.own_logs() is None

    run(scenario())
