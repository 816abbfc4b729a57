"""The reserve: who is refused at which level, and when the file system is asked again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.core.errors import DiskFull
from tidemill.core.limits import MIB
from tidemill.storage.files.disk_room import DiskRoom

RESERVE = 64 * MIB
LARGE = 1 << 40


def looked(room: DiskRoom, free_bytes: int, *, total: int = LARGE, reserve: int = RESERVE) -> None:
    room.end_look(
        room.begin_look(), total_bytes=total, free_bytes=free_bytes, reserve_bytes=reserve
    )


def at(free_bytes: int, *, total: int = LARGE, reserve: int = RESERVE) -> DiskRoom:
    room = DiskRoom("/data")
    looked(room, free_bytes, total=total, reserve=reserve)
    return room


def is_refused(take: Callable[[int], None], size_bytes: int = 1) -> bool:
    try:
        take(size_bytes)
    except DiskFull:
        return True
    return False


def refused(room: DiskRoom) -> list[bool]:
    """Whether records, copies and what the broker writes for itself are refused."""
    takes = (room.take_for_records, room.take_for_copies, room.take_for_own)
    return [is_refused(take) for take in takes]


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        (RESERVE + 8, [False, False, False]),
        (RESERVE - 1, [True, False, False]),
        (RESERVE * 3 // 4, [True, True, False]),
        (RESERVE // 2, [True, True, True]),
        (0, [True, True, True]),
    ],
)
def test_R12_the_reserve_refuses_records_first_and_the_brokers_own_state_last(free_bytes, expected):
    assert refused(at(free_bytes)) == expected


def test_R12_a_copy_of_a_segment_leaves_half_of_the_reserve_and_refuses_nobody_else():
    room = at(RESERVE + 8 * MIB)
    assert not is_refused(room.check_for_own, RESERVE // 2 + 8 * MIB)
    assert is_refused(room.check_for_own, RESERVE // 2 + 8 * MIB + 1)
    looked(room, RESERVE + 8)
    assert refused(room) == [False, False, False]


def test_R12_without_a_reserve_nothing_is_refused():
    assert refused(at(0, reserve=0)) == [False] * 3
    assert refused(DiskRoom()) == [False] * 3


def test_R12_what_is_taken_between_two_looks_does_not_reach_into_the_reserve():
    room = at(RESERVE + 10)
    room.take_for_records(6)
    assert is_refused(room.take_for_records, 5)
    room.take_for_records(4)
    assert is_refused(room.take_for_records)


def test_bytes_taken_while_the_file_system_is_asked_count_as_not_written_yet():
    room = at(RESERVE + 10)
    before = room.begin_look()
    room.take_for_copies(6)
    room.end_look(before, total_bytes=LARGE, free_bytes=RESERVE + 10, reserve_bytes=RESERVE)
    assert is_refused(room.take_for_records, 5)
    room.take_for_records(4)


def test_records_are_accepted_again_only_when_there_is_clearly_more_room_than_the_reserve():
    room = at(RESERVE - 1)
    looked(room, RESERVE + RESERVE // 8 - 1)
    assert room.is_refusing
    assert is_refused(room.take_for_records)
    looked(room, RESERVE + RESERVE // 8)
    assert not room.is_refusing
    room.take_for_records(1)


def test_a_refusal_before_the_next_look_counts_as_its_begin():
    room = at(RESERVE + 10)
    assert is_refused(room.take_for_records, 11)
    looked(room, RESERVE + 10)
    assert room.is_refusing


def test_a_reserve_that_is_switched_off_refuses_nothing_any_more():
    room = at(0)
    looked(room, 0, reserve=0)
    assert not room.is_refusing
    assert refused(room) == [False] * 3


def test_a_small_file_system_keeps_a_tenth():
    assert refused(at(7 * MIB, total=64 * MIB)) == [False] * 3
    assert refused(at(6 * MIB, total=64 * MIB)) == [True, False, False]


def test_the_refusal_says_where_and_how_much_is_kept():
    with pytest.raises(DiskFull, match=f"/data: No space left for records.*{RESERVE} bytes"):
        at(0).take_for_records(1)


class Looks:
    """Counts how often a look is asked for."""

    def __init__(self, room: DiskRoom) -> None:
        self.asked = 0
        room.on_due = self._ask

    def _ask(self) -> None:
        self.asked += 1


def test_a_look_is_asked_for_once_when_a_quarter_of_the_room_is_taken():
    room = at(RESERVE + 40 * MIB)
    looks = Looks(room)
    room.take_for_records(10 * MIB - 1)
    assert looks.asked == 0
    for _ in range(3):
        room.take_for_records(1)
    assert looks.asked == 1


def test_near_the_reserve_looks_are_at_least_a_megabyte_apart():
    room = at(RESERVE + 2 * MIB)
    looks = Looks(room)
    room.take_for_records(MIB - 1)
    assert looks.asked == 0
    room.take_for_copies(1)
    assert looks.asked == 1


def test_many_refusals_ask_for_one_look():
    room = at(RESERVE + 10)
    looks = Looks(room)
    for _ in range(3):
        assert is_refused(room.take_for_records, 11)
    assert looks.asked == 1
    looked(room, 0)
    assert is_refused(room.take_for_records)
    assert looks.asked == 1
