"""What is known to be damaged in a log: ranges that nobody reads, and where a follower cuts."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.storage.state.log_damage import (
    DamagedRange,
    LogDamage,
    load_damage,
    store_damage,
)
from tidemill.testing.sim.disk import SimDisk

END = 100
HOLE = DamagedRange(10, 20)


def noted(*ranges: tuple[int, int]) -> LogDamage:
    damage = LogDamage()
    for start, end in ranges:
        damage.note(DamagedRange(start, end))
    return damage


def pairs(damage: LogDamage) -> list[tuple[int, int]]:
    return [(one.start_offset, one.end_offset) for one in damage.ranges]


def test_a_read_ends_before_damage_and_goes_on_after_it():
    damage = noted((10, 20), (40, 50))
    assert damage.readable_end(0, END) == 10
    assert damage.readable_end(0, 5) == 5
    assert damage.readable_end(20, END) == 40
    assert damage.readable_end(50, END) == END


@pytest.mark.parametrize("offset", [10, 19])
def test_a_read_that_begins_in_damage_is_refused_for_now(offset):
    with pytest.raises(KafkaError) as refused:
        noted((10, 20)).readable_end(offset, END)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_read_of_what_was_given_up_is_refused_for_good():
    damage = noted((10, 20))
    damage.give_up(HOLE)
    with pytest.raises(KafkaError) as refused:
        damage.readable_end(10, END)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert damage
    assert not damage.is_open


def test_ranges_that_touch_are_one():
    assert pairs(noted((10, 20), (30, 40), (20, 30))) == [(10, 40)]
    assert pairs(noted((30, 40), (10, 20))) == [(10, 20), (30, 40)]


def refusal_at(damage: LogDamage, offset: int) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        damage.readable_end(offset, END)
    return refused.value.code


@pytest.mark.parametrize("found", [(20, 25), (5, 10), (5, 25), (12, 15), (10, 25)])
def test_I17_what_was_given_up_is_refused_when_damage_beside_it_was_mended(disk, found):
    damage = LogDamage()
    damage.give_up(HOLE)
    damage.note(DamagedRange(*found))
    store_damage(disk, "/t-0", damage.encode())
    for one in (damage, load_damage(disk, "/t-0")):
        assert one.to_mend == [DamagedRange(*found)]
        one.verified(*found)
        assert not one.is_open
        assert refusal_at(one, 10) == refusal_at(one, 19) == ErrorCode.CORRUPT_MESSAGE


def test_I17_a_log_start_inside_what_was_given_up_leaves_the_rest_lost():
    damage = LogDamage()
    damage.give_up(HOLE)
    damage.start_at(15)
    assert not damage.is_open
    assert refusal_at(damage, 15) is ErrorCode.CORRUPT_MESSAGE


def test_mending_a_part_leaves_the_rest():
    damage = noted((10, 40))
    damage.mended(20, 30)
    assert pairs(damage) == [(10, 20), (30, 40)]
    damage.mended(0, END)
    assert not damage


def test_nobody_misses_what_is_cut_or_deleted():
    damage = noted((10, 20), (30, 60))
    damage.cut_to(40)
    assert pairs(damage) == [(10, 20), (30, 40)]
    damage.start_at(15)
    assert pairs(damage) == [(15, 20), (30, 40)]


def test_a_cut_is_done_when_the_log_ends_there_or_before():
    damage = LogDamage(cut_offset=50)
    damage.cut_to(60)
    assert damage.cut_offset == 50
    damage.cut_to(50)
    assert damage.cut_offset is None


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/t-0")
    return disk


def test_damage_outlives_a_restart_until_it_is_gone(disk):
    damage = LogDamage([HOLE], cut_offset=50)
    store_damage(disk, "/t-0", damage.encode())
    found = load_damage(disk, "/t-0")
    assert (found.ranges, found.cut_offset) == ([HOLE], 50)
    store_damage(disk, "/t-0", LogDamage().encode())
    assert disk.list_names("/t-0") == []


def test_what_was_given_up_stays_so_over_a_restart(disk):
    damage = noted((10, 20), (40, 50))
    damage.give_up(HOLE)
    store_damage(disk, "/t-0", damage.encode())
    assert load_damage(disk, "/t-0").to_mend == [DamagedRange(40, 50)]


def test_everything_is_in_doubt_if_the_file_is_damaged_itself(disk):
    store_damage(disk, "/t-0", LogDamage([HOLE]).encode())
    disk.flip_bit("/t-0/damage", 20)
    with pytest.raises(KafkaError):
        load_damage(disk, "/t-0").readable_end(0, END)


def test_ranges_side_by_side_in_two_segments_are_both_given_up():
    damage = noted((10, 30))
    damage.give_up(DamagedRange(20, 30))  # newest first
    assert damage.to_mend == [HOLE]
    damage.give_up(HOLE)
    assert damage.to_mend == []
    assert not damage.is_open
    for offset in (10, 20):
        with pytest.raises(KafkaError) as refused:
            damage.readable_end(offset, END)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
