"""Transactions in a log's producer state: what is open, what ended, who is fenced."""

from __future__ import annotations

import struct

import pytest

from tests.support.batches import NOW_MS
from tests.support.transactions import marker, records_of
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import ENDED_TRANSACTIONS_MAX
from tidemill.storage.files.checked_file import encode_checked
from tidemill.storage.state.ended_transactions import EndedTransactions
from tidemill.storage.state.producer_bound import ProducerBound
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.batch import BatchHeader, read_header
from tidemill.wire.transaction_marker import read_marker

HIGH = 1_000
HOUR_MS = 3_600_000


def sent(producer_id: int = 9, **options: object) -> BatchHeader:
    return read_header(records_of(producer_id, **options))  # type: ignore[arg-type]


def end(states: ProducerStates, producer_id: int, offset: int, **options: object) -> None:
    first, stable = states.span_ended_at(producer_id, offset)
    made = marker(producer_id, offset=offset, first=first, stable=stable, **options)  # type: ignore[arg-type]
    header = read_header(made)
    states.end_transaction(header, read_marker(memoryview(made), header), NOW_MS)


def code_of(states: ProducerStates, header: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check(header)
    return caught.value.code


def marker_code(states: ProducerStates, *args: int, is_bumped: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check_marker(*args, is_bumped=is_bumped)
    return caught.value.code


# --- the last stable offset ----------------------------------------------------------------------


def test_T34_the_oldest_open_transaction_holds_the_stable_offset():
    states = ProducerStates()
    states.update(sent(1, offset=5), NOW_MS)
    states.update(sent(2, offset=7), NOW_MS)
    assert states.stable_offset(HIGH) == 5
    end(states, 1, 10, commit=True)
    assert states.stable_offset(HIGH) == 7
    end(states, 2, 11, commit=False)
    assert states.stable_offset(HIGH) == HIGH


def test_T34_the_high_watermark_bounds_the_stable_offset():
    states = ProducerStates()
    states.update(sent(1, offset=5), NOW_MS)
    assert states.stable_offset(3) == 3


def test_I23_a_transaction_whose_marker_may_be_lost_still_holds():
    states = ProducerStates()
    states.update(sent(1, offset=5), NOW_MS)
    end(states, 1, 10, commit=True)
    assert states.stable_offset(10) == 5
    assert states.stable_offset(11) == 11


def test_I23_a_snapshot_keeps_what_is_open_and_what_has_ended():
    states = ProducerStates()
    states.update(sent(1, offset=5), NOW_MS)
    states.update(sent(2, offset=6), NOW_MS)
    end(states, 1, 10, commit=False, coordinator_epoch=4)
    restored, _ = ProducerStates.decode(states.encode(11))
    assert restored.encode(11) == states.encode(11)
    assert [restored.stable_offset(mark) for mark in (10, 11)] == [5, 6]
    assert restored.last_abort_offset == 10


def test_a_snapshot_from_before_there_were_transactions_is_read():
    producer = struct.pack(">qhqqB", 9, 2, NOW_MS, -1, 1)
    window = struct.pack(">iiqqq", 4, 6, 40, 42, NOW_MS)
    payload = struct.pack(">qI", 43, 1) + producer + window
    states, offset = ProducerStates.decode(encode_checked(b"PROD", 1, payload))
    assert offset == 43
    assert states.check(sent(sequence=7, epoch=2)) is None
    assert states.stable_offset(HIGH) == HIGH
    assert states.fact_count == 1


def test_I23_too_many_ended_transactions_are_held_longer_never_shorter():
    ended = EndedTransactions()
    for number in range(2 * ENDED_TRANSACTIONS_MAX):
        ended.add(2 * number, 2 * number + 1)
    assert len(ended) == ENDED_TRANSACTIONS_MAX
    last = 2 * (2 * ENDED_TRANSACTIONS_MAX - 1)
    assert ended.settle(2 * (ENDED_TRANSACTIONS_MAX + 9)) == 2 * (ENDED_TRANSACTIONS_MAX - 1)
    assert ended.settle(last + 2) == -1


# --- who may write -------------------------------------------------------------------------------


def test_I19_a_marker_fences_older_epochs():
    states = ProducerStates()
    states.update(sent(epoch=3), NOW_MS)
    end(states, 9, 1, commit=False, epoch=4)
    assert code_of(states, sent(sequence=1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check(sent(epoch=4)) is None
    assert marker_code(states, 9, 3, 0) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_I22_a_retry_is_recognised_after_a_marker_of_the_same_epoch():
    states = ProducerStates()
    states.update(sent(offset=4), NOW_MS)
    end(states, 9, 5, commit=True)
    found = states.check(sent())
    assert found is not None
    assert found.base_offset == 4


def test_I22_a_late_marker_does_not_end_the_next_transaction():
    states = ProducerStates()
    states.update(sent(epoch=3), NOW_MS)
    end(states, 9, 1, commit=True, epoch=4)
    assert not states.check_marker(9, 4, 0, is_bumped=True)
    states.update(sent(epoch=4, offset=2), NOW_MS)
    assert marker_code(states, 9, 4, 0, is_bumped=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check_marker(9, 5, 0, is_bumped=True)


def test_a_repeated_marker_is_not_appended_but_a_newer_epoch_is():
    states = ProducerStates()
    assert states.check_marker(9, 3, 0, is_bumped=False)
    end(states, 9, 0, commit=True, epoch=3)
    assert not states.check_marker(9, 3, 0, is_bumped=False)
    assert states.check_marker(9, 4, 0, is_bumped=False)


def test_a_marker_of_an_older_coordinator_is_refused():
    states = ProducerStates()
    states.update(sent(), NOW_MS)
    end(states, 9, 1, commit=True, coordinator_epoch=7)
    states.update(sent(sequence=1, offset=2), NOW_MS)
    assert marker_code(states, 9, 0, 6) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert states.check_marker(9, 0, 7, is_bumped=False)


def test_only_batches_of_the_open_transaction_are_appended():
    states = ProducerStates()
    states.update(sent(epoch=3), NOW_MS)
    assert states.check(sent(sequence=1, epoch=3)) is None
    plain = sent(sequence=1, epoch=3, transactional=False)
    assert code_of(states, plain) is ErrorCode.INVALID_TXN_STATE
    assert code_of(states, sent(epoch=4)) is ErrorCode.INVALID_TXN_STATE
    assert code_of(states, sent(sequence=1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_coordinators_batch_without_sequence_opens_a_transaction_too():
    states = ProducerStates()
    own = sent(sequence=-1, epoch=2, offset=8)
    states.check_unsequenced(own)
    states.update(own, NOW_MS)
    assert states.stable_offset(HIGH) == 8
    assert states.continues(9, 2)
    assert not states.continues(9, 3)
    with pytest.raises(KafkaError) as caught:
        states.check_unsequenced(sent(sequence=-1, epoch=1))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_it_knows_whether_a_cut_removes_a_marker():
    states = ProducerStates()
    states.update(sent(offset=3), NOW_MS)
    end(states, 9, 4, commit=True)
    assert states.reaches(4)
    assert not states.reaches(5)


# --- bounds --------------------------------------------------------------------------------------


def test_S38_a_producer_with_an_open_transaction_is_neither_expired_nor_dropped():
    states = ProducerStates(producer_ids_max=2)
    states.update(sent(1, offset=0), NOW_MS)
    states.update(sent(2, offset=1, transactional=False), NOW_MS)
    states.update(sent(3, offset=2, transactional=False), NOW_MS)
    assert [one.producer_id for one in states.active()] == [3, 1]
    assert states.expire(NOW_MS + HOUR_MS, 1) == 1
    assert [one.txn_first_offset for one in states.active()] == [0]


def test_S38_where_all_are_open_no_further_transaction_is_opened():
    states = ProducerStates(producer_ids_max=2)
    states.update(sent(1), NOW_MS)
    states.update(sent(2), NOW_MS)
    assert code_of(states, sent(3)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert states.check(sent(1, sequence=1)) is None
    end(states, 2, 2, commit=True)
    assert states.check(sent(3)) is None


def test_S38_the_bound_over_all_logs_refuses_transactions_and_keeps_the_open_ones():
    bound = ProducerBound(entries_max=2)
    first, second = ProducerStates(), ProducerStates()
    bound.adopt(first)
    bound.adopt(second)
    first.update(sent(1), NOW_MS)
    second.update(sent(2), NOW_MS)
    assert code_of(second, sent(3)) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    second.update(sent(4, transactional=False), NOW_MS)
    second.update(sent(5, transactional=False), NOW_MS)
    assert [one.producer_id for one in first.active()] == [1]
    assert [one.producer_id for one in second.active()] == [5, 2]
    end(first, 1, 1, commit=True)
    second.update(sent(6, transactional=False), NOW_MS + 1)
    assert len(first) + len(second) == bound.count == 2
    assert second.check(sent(3)) is None
