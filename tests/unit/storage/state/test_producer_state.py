from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.batches import NOW_MS, batch, header
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.storage.files.checked_file import DamagedFile, encode_checked
from tidemill.storage.state.producer_state import DuplicateOf, ProducerStates
from tidemill.wire.batch import BatchHeader, read_header

SEQUENCE_MAX = 2**31 - 1


def produced(
    sequence: int, count: int = 1, *, epoch: int = 0, pid: int = 9, offset: int = 0
) -> BatchHeader:
    return header(offset, count, producer=(pid, epoch, sequence))


def states_with(*headers: BatchHeader, now_ms: int = NOW_MS) -> ProducerStates:
    states = ProducerStates()
    for appended in headers:
        assert states.check(appended) is None
        states.update(appended, now_ms)
    return states


def refusal(states: ProducerStates, sent: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        states.check(sent)
    return caught.value.code


def test_batches_without_producer_are_not_remembered():
    states = states_with(header(0), header(1))
    assert len(states) == 0


def test_T29_sequences_continue_where_they_stopped():
    states = states_with(produced(0, 3), produced(3, 2, offset=3))
    assert states.check(produced(5)) is None


def test_T29_a_repetition_gets_the_first_offset_and_time():
    first = read_header(batch(40, 3, times=[1, 9, 5], producer=(9, 0, 0)))
    states = states_with(first, produced(3, offset=43))
    assert states.check(produced(0, 3)) == DuplicateOf(40, 42, 9)


def test_T29_the_last_five_batches_are_remembered_and_no_more():
    states = states_with(*(produced(number, offset=100 + number) for number in range(7)))
    for number in range(2, 7):
        found = states.check(produced(number))
        assert found is not None
        assert found.base_offset == 100 + number
    assert refusal(states, produced(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("sent", [produced(4), produced(0, 2), produced(1, 2), produced(2)])
def test_T29_gaps_and_other_ranges_are_out_of_order(sent):
    states = states_with(produced(0, 3))
    assert refusal(states, sent) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_T29_a_lower_epoch_is_fenced():
    states = states_with(produced(0, epoch=2))
    assert refusal(states, produced(1, epoch=1)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_T29_a_new_epoch_begins_at_zero():
    states = states_with(produced(0, 3))
    assert refusal(states, produced(3, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(produced(0, epoch=1)) is None


def test_T29_a_new_epoch_forgets_the_old_window():
    states = states_with(produced(0, 3), produced(0, epoch=1, offset=3))
    assert states.check(produced(0, epoch=1)) == DuplicateOf(3, 3, NOW_MS)
    assert refusal(states, produced(3, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_T29_an_unknown_producer_may_begin_anywhere():
    states = states_with(produced(17, 3))
    assert states.check(produced(20)) is None


@pytest.mark.parametrize(
    ("producer_id", "epoch", "expected"), [(9, 3, 2), (9, 4, 0), (9, 2, -1), (10, 3, None)]
)
def test_T29_the_next_batch_of_an_epoch_begins_there(producer_id, epoch, expected):
    states = states_with(produced(0, 2, epoch=3))
    assert states.try_next_sequence(producer_id, epoch) == expected


def test_T29_sequences_wrap():
    states = states_with(produced(SEQUENCE_MAX - 1, 2, offset=5))
    assert states.check(produced(SEQUENCE_MAX - 1, 2)) == DuplicateOf(5, 6, NOW_MS)
    assert refusal(states, produced(1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(produced(0)) is None


def test_T29_a_batch_may_hold_the_wrap():
    states = states_with(produced(SEQUENCE_MAX, 3, offset=5))
    assert states.check(produced(2)) is None
    assert states.check(produced(SEQUENCE_MAX, 3)) == DuplicateOf(5, 7, NOW_MS)


def test_producers_expire_by_their_last_append():
    states = states_with(produced(0, pid=1), now_ms=1_000)
    states.update(produced(0, pid=2), 2_000)
    states.update(produced(1, pid=1), 3_000)
    assert states.expire(now_ms=5_000, expiration_ms=3_000) == 1
    assert states.check(produced(7, pid=2)) is None
    assert refusal(states, produced(7, pid=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_expiry_forgets_no_more_than_its_slice():
    states = ProducerStates()
    for pid in range(5):
        states.update(produced(0, pid=pid), 1_000)
    assert states.expire(now_ms=9_000, expiration_ms=1, entries_max=3) == 3
    assert [producer.producer_id for producer in states.active()] == [3, 4]


def test_S38_the_producer_silent_longest_is_dropped():
    states = ProducerStates(producer_ids_max=3)
    for pid in (1, 2, 3):
        states.update(produced(0, pid=pid), NOW_MS)
    states.update(produced(1, pid=1), NOW_MS)
    states.update(produced(0, pid=4), NOW_MS)
    assert len(states) == 3
    assert states.check(produced(5, pid=2)) is None
    assert refusal(states, produced(5, pid=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_it_knows_whether_a_cut_removes_a_remembered_batch():
    states = states_with(produced(0, 3, offset=10))
    assert states.reaches(12)
    assert not states.reaches(13)


sent_batches = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 3)), max_size=30
)


@given(sent_batches)
def test_I18_a_snapshot_restores_the_same_decisions(
    sent,
):
    states, next_sequence, offset = ProducerStates(), dict[tuple[int, int], int](), 0
    for pid, epoch, count in sent:
        sequence = next_sequence.get((pid, epoch), 0)
        states.update(produced(sequence, count, epoch=epoch, pid=pid, offset=offset), NOW_MS)
        next_sequence[pid, epoch] = sequence + count
        offset += count
    restored, at = ProducerStates.decode(states.encode(offset))
    assert at == offset
    assert restored.encode(offset) == states.encode(offset)


def test_I18_what_is_appended_after_a_capture_is_not_in_it():
    states = states_with(produced(0, 3), produced(3, 2, offset=3))
    captured, before = states.capture(5), states.encode(5)
    states.update(produced(5, offset=5), NOW_MS + 1)
    states.update(produced(0, pid=10, offset=6), NOW_MS + 1)
    assert captured.encode() == before


def test_I18_states_that_share_entries_with_a_capture_do_not_change_it():
    states = states_with(produced(0, 3))
    captured, before = states.capture(3), states.encode(3)
    restored = ProducerStates.restored(captured)
    restored.update(produced(3, offset=3), NOW_MS + 1)
    states.replace(ProducerStates.restored(captured))
    states.update(produced(3, offset=3), NOW_MS + 1)
    assert captured.encode() == before
    assert restored.encode(4) == states.encode(4) != before


def test_a_snapshot_keeps_the_wrap():
    restored, _ = ProducerStates.decode(states_with(produced(SEQUENCE_MAX)).encode(1))
    assert restored.check(produced(0)) is None


@pytest.mark.parametrize(
    "payload", [b"", bytes(8) + b"\x7f\xff\xff\xff", bytes(13), bytes(12) + b"\1" + bytes(99)]
)
def test_an_impossible_snapshot_is_damage(payload):
    with pytest.raises(DamagedFile):
        ProducerStates.decode(encode_checked(b"PROD", 1, payload))
