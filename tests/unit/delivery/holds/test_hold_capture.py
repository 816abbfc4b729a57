"""A book that was captured, written and read again goes on as the one that it was taken from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.delivery.holds.any_log import any_log
from tests.unit.delivery.holds.book_answers import answers
from tests.unit.delivery.holds.hold_log import HoldLog, at, cron, released
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_capture import HoldCapture


class Spilling:
    """A book whose runs are kept here."""

    def __init__(self, table_max: int) -> None:
        self.book = HoldBook(table_max=table_max)
        self.runs: dict[int, memoryview] = {}

    def fold(self, log: HoldLog, start: int, end: int) -> None:
        for header, events in log.read:
            if start <= header.base_offset < end:
                self.book.fold(events, offset=header.next_offset)
                spill = self.book.try_freeze()
                if spill is not None:
                    self.runs[spill.serial] = memoryview(spill.encode())
                    self.book.adopt(spill.serial, self.runs[spill.serial])


@pytest.mark.slow
@given(any_log(), st.integers(1, 3), st.data())
def test_a_snapshot_and_the_rest_of_the_log_give_the_book_of_the_whole_log(log, table_max, data):
    spilling = Spilling(table_max)
    middle = data.draw(st.sampled_from([0, *[header.next_offset for header, _ in log.read]]))
    spilling.book.settle(data.draw(st.integers(0, middle)))
    spilling.fold(log, 0, middle)
    encoded = spilling.book.capture().encode()
    spilling.fold(log, middle, log.end)
    restored = HoldBook(serial=99)
    restored.restore(HoldCapture.decode(memoryview(encoded)), spilling.runs)
    assert restored.next_offset == middle
    log.fold_into(restored, middle)
    assert answers(restored, log) == answers(spilling.book, log)
    assert restored.newest_stamp_ms == spilling.book.newest_stamp_ms


def test_a_book_that_is_captured_and_restored_again_and_again_finds_every_ticket():
    log, spilling = HoldLog(), Spilling(2)
    folded = 0
    for _ in range(3):
        for due_ms in range(4):
            log.client(at(due_ms), at(due_ms))
        spilling.fold(log, folded, log.end)
        folded = log.end
        encoded = spilling.book.capture().encode()
        spilling.book = HoldBook(serial=max(spilling.runs) + 1, table_max=2)
        spilling.book.restore(HoldCapture.decode(memoryview(encoded)), spilling.runs)
        assert [ticket for ticket in range(log.end) if spilling.book.find(ticket) is None] == []


def _captured() -> tuple[HoldCapture, dict[int, memoryview]]:
    log, spilling = HoldLog(), Spilling(2)
    log.client(at(10, b"a"), at(20))
    log.client(cron(b"daily"))
    log.ours(released(0))
    log.client(at(30), producer_id=7)
    spilling.fold(log, 0, log.end)
    return spilling.book.capture(), spilling.runs


def test_a_capture_has_each_part_of_the_state():
    captured, _ = _captured()
    assert captured == HoldCapture.decode(memoryview(captured.encode()))
    assert [hold.schedule for hold in captured.holds] == ["0 9 * * *"]
    assert [run.taken for run in captured.runs] == [b"\x01\x00"]
    assert [producer_id for producer_id, _ in captured.undecided] == [7]
    assert captured.pins == [(4, 0)]


def test_a_capture_that_is_cut_anywhere_is_refused():
    encoded = _captured()[0].encode()
    for size in range(len(encoded)):
        with pytest.raises(ValueError, match="capture"):
            HoldCapture.decode(memoryview(encoded[:size]))
    with pytest.raises(ValueError, match="1 bytes behind"):
        HoldCapture.decode(memoryview(encoded + b"x"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_that_is_not_the_captured_one_is_refused(count):
    captured, runs = _captured()
    other = Spilling(count)
    log = HoldLog()
    log.client(*[at(10)] * count)
    other.fold(log, 0, log.end)
    (serial,) = runs
    with pytest.raises(ValueError, match="another run"):
        HoldBook().restore(captured, {serial: next(iter(other.runs.values()))})
