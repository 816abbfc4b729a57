from __future__ import annotations

from tidemill.metadata.store.hung_peers import HungPeers

STEP_S = 0.2


def looks(watch: HungPeers, stamp: float, *, start: float, count: int) -> list[int]:
    """Look every 200 ms at one peer whose stamp stands still; how many looks until it hangs."""
    return [n for n in range(count) if watch.look({7: stamp}, start + n * STEP_S) == [7]]


def test_a_peer_that_renews_its_stamp_does_not_hang():
    watch = HungPeers()
    assert not any(watch.look({7: 10 + n * STEP_S}, 10 + n * STEP_S) for n in range(100))


def test_a_peer_hangs_when_its_stamp_is_over_three_seconds_old():
    hung = looks(HungPeers(), 10.0, start=10.0, count=20)
    assert hung[0] == 16  # 3.2 s


def test_one_look_at_an_old_stamp_is_not_enough():
    assert looks(HungPeers(), 10.0, start=100.0, count=4) == [2, 3]


def test_an_observer_that_was_stopped_itself_gives_its_peers_time_to_wake_up():
    watch = HungPeers()
    assert looks(watch, 10.0, start=10.0, count=10) == []
    # All are stopped for a minute; the others have not run yet when this one wakes up.
    assert watch.look({7: 11.8}, 71.8) == []
    assert watch.look({7: 11.8}, 72.0) == []
    assert watch.look({7: 72.1}, 72.2) == []


def test_a_peer_that_is_gone_is_forgotten():
    watch = HungPeers()
    looks(watch, 10.0, start=100.0, count=4)
    assert watch.look({}, 100.8) == []
    assert watch.look({7: 10.0}, 101.0) == []
