"""The judge of transactional runs sees every way in which a promise can be broken."""

from __future__ import annotations

import pytest

from tests.support.transaction_history import Outcome, TransactionHistory
from tidemill.core.ids import TopicPartition
from tidemill.wire.records import Record

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def two_partitions(outcome):
    """A history of one transaction with a record in each of two partitions."""
    history = TransactionHistory()
    sent = history.begin(1)
    sent.outcome = outcome
    return history, sent, sent.value(HERE), sent.value(THERE)


def records(*values, first=0):
    return [Record(value, offset=first + at) for at, value in enumerate(values)]


def found(here=(), there=()):
    return {HERE: records(*here), THERE: records(*there)}


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.UNKNOWN])
def test_all_of_a_transaction_is_fine(outcome):
    history, _, one, other = two_partitions(outcome)
    history.check_final(found([one], [other]), {})


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.UNKNOWN])
def test_nothing_of_a_transaction_is_fine(outcome):
    history, *_ = two_partitions(outcome)
    history.check_final(found(), {})


@pytest.mark.parametrize(
    ("outcome", "here", "there", "promise"),
    [
        (Outcome.COMMITTED, False, False, "I20"),
        (Outcome.COMMITTED, True, False, "I20"),
        (Outcome.UNKNOWN, False, True, "I20"),
        (Outcome.ABORTED, True, True, "I21"),
        (Outcome.ABORTED, False, True, "I21"),
    ],
)
def test_a_part_or_the_wrong_outcome_is_found(outcome, here, there, promise):
    history, _, one, other = two_partitions(outcome)
    with pytest.raises(AssertionError, match=promise):
        history.check_final(found([one] * here, [other] * there), {})


def test_a_record_that_is_there_twice_is_found():
    history, _, one, other = two_partitions(Outcome.COMMITTED)
    with pytest.raises(AssertionError, match="I18"):
        history.check_final(found([one, one], [other]), {})


def test_a_record_at_another_offset_than_was_told_is_found():
    history, sent, one, other = two_partitions(Outcome.COMMITTED)
    sent.acked[one] = 5
    with pytest.raises(AssertionError, match="I18"):
        history.check_final(found([one], [other]), {})


def test_a_stray_counts_only_with_its_own_transaction():
    history, sent, one, other = two_partitions(Outcome.UNKNOWN)
    stray = sent.stray()
    history.check_final(found([one, stray], [other]), {})
    with pytest.raises(AssertionError, match="I22"):
        history.check_final(found([stray]), {})


def test_a_foreign_record_is_found():
    history, _, one, other = two_partitions(Outcome.COMMITTED)
    with pytest.raises(AssertionError, match="I3"):
        history.check_final(found([one, b"9/000001/000"], [other]), {})


def test_a_reader_that_saw_what_was_aborted_is_found():
    history, _, one, _ = two_partitions(Outcome.ABORTED)
    history.read(HERE, records(one))
    with pytest.raises(AssertionError, match="I21"):
        history.check_final(found(), {})


def test_a_reader_that_passed_a_committed_record_is_found():
    history, _, one, other = two_partitions(Outcome.COMMITTED)
    history.read(THERE, records(other))
    history.check_final(found([one], [other]), {HERE: range(0)})
    with pytest.raises(AssertionError, match="I20"):
        history.check_final(found([one], [other]), {HERE: range(1)})


def test_another_order_is_found():
    history, _, one, other = two_partitions(Outcome.COMMITTED)
    later = history.begin(1)
    later.outcome = Outcome.COMMITTED
    last = later.value(HERE)
    history.check_final(found([one, last], [other]), {})
    with pytest.raises(AssertionError, match="I5"):
        history.check_final(found([last, one], [other]), {})


def test_a_stable_offset_that_goes_back_is_found():
    history = TransactionHistory()
    history.stable_offset(HERE, 7, known_before=0)
    assert history.known_stable(HERE) == 7
    with pytest.raises(AssertionError, match="I23"):
        history.stable_offset(HERE, 6, known_before=7)


def test_an_offset_counts_with_its_transaction_and_not_without():
    history, sent, one, _ = two_partitions(Outcome.UNKNOWN)
    sent.offset = sent.number
    assert history.committed_offset(1, [one]) == sent.number
    assert history.committed_offset(1, []) == -1
