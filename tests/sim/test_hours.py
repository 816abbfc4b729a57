"""Campaigns of simulated hours: a long life, and the file that adds lives up."""

from __future__ import annotations

import pytest

from tests.sim.history import History
from tests.sim.hours import Life, Summary, main
from tests.sim.long_life import live_long
from tidemill.core.ids import TopicPartition
from tidemill.wire.records import Record

ORDERS = TopicPartition("orders", 0)


def life(seed: int, **values: object) -> Life:
    return Life(seed, 60.0, simulated_s=3_600.0, **values)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_long_life_is_one_run_of_its_seed():
    lives = [live_long(3, simulated_s=60.0) for _ in range(2)]
    assert lives[0].trace == lives[1].trace
    assert lives[0].simulated_s >= 60.0
    assert lives[0].acked
    assert lives[0].elections
    assert len(lives[0].faults) >= 20


@pytest.mark.slow
def test_I13_what_an_unclean_election_gave_up_may_be_cut_some_time_later():
    """A replica that was not in sync has flushed more than those that were, and lost power."""
    assert live_long(20077, simulated_s=1_800.0).acked


@pytest.mark.slow
def test_a_life_leaves_no_exception_to_those_that_others_raise_later():
    """Compiled coroutines of dead brokers may fail to be closed."""
    assert live_long(21037, simulated_s=300.0).faults
    with pytest.raises(ValueError, match="later") as raised:
        raise ValueError("later")
    assert raised.value.__context__ is None


@pytest.mark.slow
def test_I12_a_move_may_leave_a_single_replica_that_has_just_lost_what_it_had_not_flushed():
    """An administrator wants it so: until then, another replica had what readers saw."""
    assert live_long(21037, simulated_s=2_200.0).acked


def test_what_was_checked_and_deleted_is_forgotten_and_the_rest_still_counts():
    history = History()
    for offset in range(4):
        history.sent(ORDERS, offset, history.value(1, offset))
    found = [Record(offset=at, value=b"1/%06d" % at) for at in range(4)]
    history.check_final(ORDERS, found)
    history.deleting(ORDERS, 2)
    history.forget_checked()
    assert list(history.acked[ORDERS]) == [2, 3]
    assert history.readable_from(ORDERS) == 2
    history.read(ORDERS, found[2:])
    with pytest.raises(AssertionError, match="I1"):
        history.check_final(ORDERS, found[3:])


def test_a_value_stays_known_while_the_log_has_it_or_it_may_still_arrive():
    history = History()
    lies, late = history.hasty_value(1, 1), history.hasty_value(1, 2)
    for _ in range(2):
        history.check_final(ORDERS, [Record(offset=0, value=lies)])
        history.forget_checked()
        history.read(ORDERS, [Record(offset=0, value=lies)])
    with pytest.raises(AssertionError):
        history.read(ORDERS, [Record(offset=1, value=late)])


def test_lives_add_up_and_one_with_a_violation_adds_only_that(tmp_path):
    path = tmp_path / "hours.json"
    first = Summary.load(path)
    first.add(life(0, acked=5, elections=2, faults={"crash": 3}), "one")
    first.save(path)
    second = Summary.load(path)
    assert second.next_seed == 1
    second.add(life(1, acked=7, elections=1, faults={"crash": 1, "storm": 4}), "two")
    second.add(life(2, error="I1: lost"), "two")
    assert (second.hours, second.lives, second.faults) == (2.0, 2, 8)
    assert second.faults_by_kind == {"crash": 4, "storm": 4}
    assert second.hours_by_revision == {"one": 1.0, "two": 1.0}
    assert (second.records_acknowledged, second.elections) == (12, 3)
    (found,) = second.violations
    assert found["command"] == "python -m tests.sim.hours --seed 2 --minutes 60"
    assert second.next_seed == 3


@pytest.mark.slow
def test_a_campaign_goes_on_after_the_seeds_of_the_one_before(tmp_path, capsys):
    path = tmp_path / "hours.json"
    command = ["--hours", "0.005", "--minutes", "0.3", "--jobs", "1", "--summary", str(path)]
    assert [main(command), main(command)] == [0, 0]
    summary = Summary.load(path)
    assert (summary.lives, summary.next_seed, summary.violations) == (2, 2, [])
    assert "faults by kind" in capsys.readouterr().out
