from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.client.network.metadata_cache import MetadataCache
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def answer(leader: int, epoch: int, *, topic_id: int = 7, error: int = 0) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host="h", port=9000 + n) for n in (1, 2, 3)],
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name="t",
                error_code=error,
                topic_id=UUID(int=topic_id),
                partitions=[
                    MetadataResponsePartition(
                        partition_index=0, leader_id=leader, leader_epoch=epoch
                    )
                ],
            )
        ],
    )


def cache_with(*answers: MetadataResponse) -> MetadataCache:
    cache = MetadataCache()
    for response in answers:
        cache.apply(response)
    return cache


def leader_of(cache: MetadataCache) -> int | None:
    leader = cache.try_leader("t", 0)
    return leader.broker_id if leader is not None else None


def test_a_late_answer_does_not_bring_an_old_leader_back():
    assert leader_of(cache_with(answer(2, epoch=5), answer(1, epoch=4))) == 2


def test_a_topic_created_again_starts_with_its_own_leaders():
    assert leader_of(cache_with(answer(2, epoch=5), answer(1, epoch=0, topic_id=8))) == 1


def test_T28_a_leader_hint_of_a_higher_epoch_is_followed_without_asking():
    cache = cache_with(answer(1, epoch=1))

    assert cache.apply_leader_hint("t", 0, 3, 2)
    assert leader_of(cache) == 3


@pytest.mark.parametrize(
    ("leader", "epoch"), [(3, 1), (3, 0), (-1, 9)], ids=["same epoch", "older", "no leader"]
)
def test_T28_a_hint_that_is_not_newer_changes_nothing(leader, epoch):
    cache = cache_with(answer(1, epoch=1))

    assert not cache.apply_leader_hint("t", 0, leader, epoch)
    assert leader_of(cache) == 1


def test_T28_a_hint_to_a_broker_we_do_not_know_asks_for_a_refresh():
    cache = cache_with(answer(1, epoch=1))

    assert not cache.apply_leader_hint("t", 0, 99, 2)
    assert leader_of(cache) is None


def test_a_forgotten_leader_comes_back_with_the_next_answer():
    cache = cache_with(answer(1, epoch=1))
    cache.forget_leader("t", 0)
    assert leader_of(cache) is None

    cache.apply(answer(1, epoch=1))

    assert leader_of(cache) == 1


def test_a_refused_topic_is_forgotten_and_its_code_kept():
    cache = cache_with(answer(1, epoch=1), answer(1, epoch=1, error=29))

    with pytest.raises(KafkaError) as refusal:
        cache.topic("t")

    assert refusal.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_code_from_a_later_protocol_counts_as_unknown():
    cache = cache_with(answer(1, epoch=1, error=9999))

    assert cache.errors["t"] is ErrorCode.UNKNOWN_SERVER_ERROR
