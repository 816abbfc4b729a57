"""Changes of finalized levels: which are refused, and what is said then."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode
from tidemill.metadata.features.feature_levels import (
    BEFORE_FEATURES,
    OLDER_SOFTWARE,
    THIS_SOFTWARE,
    TIDEMILL_VERSION,
    TRANSACTION_VERSION,
    FinalizedLevels,
    LevelRange,
    Software,
    first_levels,
    why_kept_out,
)
from tidemill.metadata.features.level_changes import LevelChange, Way, planned_levels

NEWEST = first_levels(THIS_SOFTWARE)
UP, SAFE, UNSAFE = Way.UPGRADE, Way.SAFE_DOWNGRADE, Way.UNSAFE_DOWNGRADE


def plan(now, *changes, known=None):
    found = planned_levels(
        now,
        [LevelChange(*change) for change in changes],
        own=THIS_SOFTWARE,
        known={0: THIS_SOFTWARE} if known is None else known,
        next_epoch=9,
    )
    assert all(one.code is ErrorCode.INVALID_UPDATE_VERSION for one in found.refusals.values())
    details = {name: error.detail for name, error in found.refusals.items()}
    if details:
        assert found.after is now
    return found.after, details


def test_a_level_rises_when_all_brokers_can():
    known = {0: THIS_SOFTWARE, 1: THIS_SOFTWARE}
    after, refusals = plan(BEFORE_FEATURES, (TIDEMILL_VERSION, 2, UP), known=known)
    assert not refusals
    assert (after.level_of(TIDEMILL_VERSION), after.epoch) == (2, 9)
    assert after.level_of(TRANSACTION_VERSION) == 2


def test_a_broker_with_older_software_is_named_in_the_refusal():
    known = {0: THIS_SOFTWARE, 3: OLDER_SOFTWARE}
    _, refusals = plan(BEFORE_FEATURES, (TIDEMILL_VERSION, 2, UP), known=known)
    assert refusals[TIDEMILL_VERSION] == (
        "tidemill.version cannot be 2: broker 3 runs an older version, which has 1: upgrade it "
        "first, or stop and unregister it"
    )


def test_a_broker_that_is_away_counts_as_unable():
    known = {0: THIS_SOFTWARE, 5: None}
    _, refusals = plan(BEFORE_FEATURES, (TIDEMILL_VERSION, 2, UP), known=known)
    assert "broker 5 is away" in refusals[TIDEMILL_VERSION]
    assert "unregister" in refusals[TIDEMILL_VERSION]


@pytest.mark.parametrize(
    ("name", "level", "way", "why"),
    [
        ("share.version", 1, UP, "does not know it"),
        (TRANSACTION_VERSION, 3, UP, "which has 0 to 2"),
        (TRANSACTION_VERSION, -1, SAFE, "which has 0 to 2"),
        (TRANSACTION_VERSION, 1, UP, "a downgrade was not asked for"),
        ("metadata.version", 29, UNSAFE, "which has 30"),
        (TIDEMILL_VERSION, 1, SAFE, "no way back"),
        (TIDEMILL_VERSION, 1, UNSAFE, "no way back"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(name, level, way, why):
    _, refusals = plan(NEWEST, (name, level, way))
    assert list(refusals) == [name]
    assert why in refusals[name]


def test_a_downgrade_that_would_raise_a_level_is_refused():
    lower = FinalizedLevels({**NEWEST.levels, TRANSACTION_VERSION: 1}, 3)
    _, refusals = plan(lower, (TRANSACTION_VERSION, 2, SAFE))
    assert "no downgrade" in refusals[TRANSACTION_VERSION]


@pytest.mark.parametrize("way", [SAFE, UNSAFE])
@pytest.mark.parametrize("level", [0, 1])
def test_transactions_can_go_back_to_the_older_generation(way, level):
    after, refusals = plan(NEWEST, (TRANSACTION_VERSION, level, way))
    assert not refusals
    assert after.level_of(TRANSACTION_VERSION) == level


def test_one_refusal_refuses_all_changes_of_a_request():
    after, refusals = plan(NEWEST, (TRANSACTION_VERSION, 1, SAFE), ("share.version", 1, UP))
    assert (after, list(refusals)) == (NEWEST, ["share.version"])


def test_the_level_that_there_is_can_be_asked_for_in_any_way_even_with_brokers_away():
    for way in Way:
        after, refusals = plan(NEWEST, (TRANSACTION_VERSION, 2, way), known={7: None})
        assert (after, refusals) == (NEWEST, {})


def test_no_level_changes_before_levels_can_be_stored():
    _, refusals = plan(BEFORE_FEATURES, (TRANSACTION_VERSION, 1, SAFE))
    assert "tidemill.version 2 is needed first" in refusals[TRANSACTION_VERSION]
    both = (TIDEMILL_VERSION, 2, UP), (TRANSACTION_VERSION, 1, SAFE)
    after, refusals = plan(BEFORE_FEATURES, *both)
    assert not refusals
    assert (after.level_of(TIDEMILL_VERSION), after.level_of(TRANSACTION_VERSION)) == (2, 1)


def test_a_broker_that_lacks_a_level_is_told_to_be_upgraded_in_one_sentence():
    assert why_kept_out(1, THIS_SOFTWARE, NEWEST) is None
    old = Software("0.0.9", {**THIS_SOFTWARE.ranges, TRANSACTION_VERSION: LevelRange(0, 1)})
    sentence = "broker 2 runs 0.0.9 and lacks transaction.version 2: upgrade it"
    assert why_kept_out(2, old, NEWEST) == sentence
    newer = FinalizedLevels({**NEWEST.levels, "later.version": 1}, 3)
    assert "lacks later.version 1: upgrade it" in (why_kept_out(2, THIS_SOFTWARE, newer) or "")


def test_software_that_has_given_up_an_old_level_waits_until_the_level_is_raised():
    new = Software("2.0.0", {**THIS_SOFTWARE.ranges, TIDEMILL_VERSION: LevelRange(2, 4)})
    assert why_kept_out(2, new, BEFORE_FEATURES) == (
        "broker 2 runs 2.0.0 and needs tidemill.version 2 or higher, where the cluster has 1: run "
        "an older version there until the level is raised"
    )


def test_this_software_can_join_a_cluster_of_the_software_before_and_not_the_other_way():
    assert not BEFORE_FEATURES.lacking_in(THIS_SOFTWARE)
    assert not BEFORE_FEATURES.lacking_in(OLDER_SOFTWARE)
    assert NEWEST.lacking_in(OLDER_SOFTWARE) == [TIDEMILL_VERSION]
