"""What a leader remembers of its followers, and when it forgets."""

from __future__ import annotations

import pytest

from tests.support.partitions import ALL, OWN, SECOND, THIRD, image
from tidemill.broker.data_plane import lag_s_max
from tidemill.core.config.broker_config import broker_config
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.isr import NEVER, JoinBar
from tidemill.replication.led_replicas import LAG_S_MAX, BrokerEpochs, LedReplicas

BAR = JoinBar(log_end_offset=0)


def led(isr: tuple[int, ...] = (OWN, SECOND), epochs: BrokerEpochs | None = None) -> LedReplicas:
    return LedReplicas(OWN, image(isr=isr), epochs or BrokerEpochs(), now=1.0)


def fetched(
    of: LedReplicas, by: int, offset: int, *, leader_end: int = 9, now: float = 2.0
) -> bool:
    return of.fetched(
        by, fetch_offset=offset, flushed_offset=offset, leader_end=leader_end, now=2.0
    )


def test_only_members_count_as_caught_up_when_an_epoch_begins():
    followers = led().followers
    assert (followers[SECOND].caught_up_at, followers[THIRD].caught_up_at) == (1.0, NEVER)
    assert {one.log_end_offset for one in followers.values()} == {-1}


def test_H7_a_broker_that_restarted_has_no_position_until_it_fetches_again():
    replicas = led()
    fetched(replicas, SECOND, 9)
    replicas.restarted(SECOND)
    assert replicas.in_sync.agreed(9, 9, replicas.followers, 1) == (-1, -1)
    fetched(replicas, SECOND, 4)
    assert replicas.in_sync.agreed(9, 9, replicas.followers, 1) == (4, 4)


def test_a_new_replica_has_no_position_and_an_old_one_keeps_it():
    replicas = LedReplicas(OWN, image(replicas=(OWN, SECOND)), BrokerEpochs(), now=1.0)
    fetched(replicas, SECOND, 9)
    replicas.follow(image(replicas=ALL, version=1), now=2.0)
    assert replicas.followers[SECOND].log_end_offset == 9
    assert replicas.followers[THIRD].log_end_offset == -1
    replicas.follow(image(replicas=(OWN, THIRD), version=2), now=3.0)
    assert list(replicas.followers) == [THIRD]


def test_the_marks_wait_for_a_follower_that_has_caught_up_until_it_lags():
    replicas = led(isr=(OWN,))
    assert fetched(replicas, THIRD, 9)
    assert not fetched(replicas, THIRD, 9)
    assert replicas.in_sync.counted == (OWN, THIRD)
    assert not replicas.review_candidates(2.0 + LAG_S_MAX)
    assert replicas.review_candidates(2.1 + LAG_S_MAX)
    assert replicas.in_sync.counted == (OWN,)


def test_F78_how_long_a_follower_may_be_behind_is_the_limit_of_the_moment():
    epochs = BrokerEpochs()
    replicas = led(isr=(OWN, SECOND), epochs=epochs)
    fetched(replicas, SECOND, 8)
    assert len(replicas.wanted(BAR, leader_end=9, now=1.0 + LAG_S_MAX)) == 2
    epochs.lag_s_max = 3.0
    assert len(replicas.wanted(BAR, leader_end=9, now=4.0)) == 2
    assert len(replicas.wanted(BAR, leader_end=9, now=4.1)) == 1


@pytest.mark.parametrize(
    ("values", "expected_s"),
    [
        ({}, 10.0),
        ({"replica.lag.time.max.ms": 30_000}, 30.0),
        ({"zookeeper.session.timeout.ms": 9_000}, 10.0),
        ({"zookeeper.session.timeout.ms": 9_000, "zookeeper.connect": "zk"}, 18.0),
    ],
)
def test_the_limit_is_at_least_two_sessions_where_leases_end_by_the_clock(values, expected_s):
    assert lag_s_max(broker_config(values=values)) == expected_s


def test_the_marks_do_not_wait_for_a_follower_that_is_behind():
    replicas = led(isr=(OWN,))
    assert not fetched(replicas, THIRD, 8)
    assert replicas.in_sync.counted == (OWN,)


def test_a_broker_that_is_not_let_in_may_not_join():
    epochs = BrokerEpochs()
    epochs.registered = {OWN: 1, SECOND: 2, THIRD: 3}
    epochs.let_in = {OWN, SECOND}
    replicas = led(isr=(OWN,), epochs=epochs)
    assert fetched(replicas, SECOND, 9)
    assert not fetched(replicas, THIRD, 9)
    assert replicas.wanted(BAR, leader_end=9, now=2.0) == ((OWN, 1), (SECOND, 2))


def test_I15_a_fetch_counts_only_in_the_life_of_the_broker_that_the_image_knows():
    epochs = BrokerEpochs()
    epochs.check(SECOND, -1)
    epochs.registered = {SECOND: 7}
    epochs.check(SECOND, 7)
    for broker_id, epoch in ((SECOND, 6), (SECOND, 8), (SECOND, -1), (THIRD, -1)):
        with pytest.raises(KafkaError) as caught:
            epochs.check(broker_id, epoch)
        assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
