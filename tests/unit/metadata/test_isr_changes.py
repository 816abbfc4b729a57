"""In-sync sets that leaders propose, at the controller of three brokers."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.metadata.three_brokers import partition, propose, three_brokers
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.metadata.image.isr_proposal import IsrProposal


def test_S11_many_proposals_are_decided_in_slices(run):
    async def scenario() -> None:
        _, clusters = await three_brokers()
        controller = clusters[0]
        proposals = [
            IsrProposal(
                topic_id=controller.image.topics["t"].topic_id,
                partition=index,
                leader_epoch=-1,
                partition_epoch=-(2**31),
                isr=((-7, -1),),
            )
            for index in range(-1, 3 * PARTITIONS_CHANGED_PER_SLICE)
        ]
        epoch = controller.image.brokers[1].epoch
        work = asyncio.ensure_future(controller.alter_isr(1, epoch, proposals))
        turns = 0
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 4
        assert {one.code for one in await work} == {
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.FENCED_LEADER_EPOCH,
        }

    run(scenario())


def test_I14_the_leader_changes_the_isr_by_compare_and_set(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        before = partition(clusters[1])
        after = (await propose(clusters, [1, 2], before)).state
        assert after is not None
        assert (after.isr, after.partition_epoch) == ((1, 2), before.partition_epoch + 1)
        assert partition(clusters[0]) == after
        await small.catch_up()
        assert partition(clusters[1]) == after
        assert (await propose(clusters, [1], before)).code is ErrorCode.INVALID_UPDATE_VERSION

    run(scenario())


def test_a_proposal_of_the_same_set_takes_an_epoch_so_that_an_older_one_cannot_come(run):
    async def scenario() -> None:
        _, clusters = await three_brokers()
        before = partition(clusters[1])
        touched = (await propose(clusters, list(before.isr), before)).state
        assert touched is not None
        assert (touched.isr, touched.partition_epoch) == (before.isr, before.partition_epoch + 1)
        assert (await propose(clusters, [1], before)).code is ErrorCode.INVALID_UPDATE_VERSION

    run(scenario())


def test_a_proposal_survives_a_change_of_the_controller(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        before = partition(clusters[1])
        small.crash(0)
        await small.catch_up()
        now = partition(clusters[1])
        after = (await propose(clusters[1:], [1], now)).state
        assert after is not None
        assert (before.leader_epoch, after.leader_epoch, after.isr) == (0, 0, (1,))

    run(scenario())


def test_only_the_leader_proposes_and_only_for_topics_that_exist(run):
    async def scenario() -> None:
        _, clusters = await three_brokers()
        now = partition(clusters[0])
        refused = await propose(clusters, [1], now, sender=0)
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await propose(clusters, [1], now, index=9)).code is ErrorCode.UNKNOWN_TOPIC_ID

    run(scenario())


def test_an_earlier_life_of_a_broker_proposes_nothing(run):
    async def scenario() -> None:
        _, clusters = await three_brokers()
        with pytest.raises(KafkaError) as refused:
            await clusters[0].alter_isr(1, clusters[1].broker_epoch - 1, [])
        assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH

    run(scenario())


def test_a_follower_that_restarted_since_it_fetched_does_not_join_the_isr(run):
    async def scenario() -> None:
        small, clusters = await three_brokers()
        old_epoch = clusters[2].broker_epoch
        small.crash(2)
        await small.catch_up()
        await small.start(2)
        now = partition(clusters[1])
        refused = await propose(clusters[:2], [0, 1, 2], now, epochs={2: old_epoch})
        assert refused.code is ErrorCode.INELIGIBLE_REPLICA
        after = (await propose(clusters[:2], [0, 1, 2], now)).state
        assert after is not None
        assert after.isr == (1, 2, 0)

    run(scenario())
