"""The watches of followers on one partition: one for each, and what they hear."""

from __future__ import annotations

from tests.support.partitions import SECOND, THIRD, Watch
from tidemill.replication.vouching.vouch import NO_VOUCH
from tidemill.replication.waiting.follower_watches import FOREVER, FollowerWatches


def test_a_new_watch_takes_the_place_of_the_followers_last_one():
    watches, old, new = FollowerWatches(), Watch(), Watch()
    watches.add(SECOND, old)
    watches.add(SECOND, new)
    watches.remove(SECOND, old)
    watches.grew()
    assert (old.heard, new.heard) == (["detached"], ["grew"])
    assert watches.find(SECOND) is new
    watches.remove(SECOND, new)
    assert watches.find(SECOND) is None


def test_a_log_start_is_told_once():
    watches, watch = FollowerWatches(), Watch()
    watches.add(SECOND, watch)
    for start in (0, 0, 5, 5):
        watches.log_starts_at(start)
    assert watch.heard == ["mark moved", "mark moved"]


def test_all_vouch_until_the_first_of_them_does_no_longer():
    watches = FollowerWatches()
    assert watches.vouched_until(()) == FOREVER
    watches.add(SECOND, Watch(vouched_until=7.0))
    assert watches.vouched_until((SECOND,)) == 7.0
    assert watches.vouched_until((SECOND, THIRD)) == NO_VOUCH
    watches.add(THIRD, Watch(vouched_until=5.0))
    assert watches.vouched_until((SECOND, THIRD)) == 5.0
