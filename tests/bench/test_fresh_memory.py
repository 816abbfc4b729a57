"""Memory is touched before anything is measured, and no more than there is."""

from __future__ import annotations

from bench.fresh_memory import STEP_BYTES, free_bytes, touch


def test_free_memory_is_what_the_kernel_says(tmp_path):
    facts = tmp_path / "meminfo"
    facts.write_text(
        "MemTotal:       24105000 kB\nMemFree:         2048 kB\nHugePages_Free:    0\n"
    )
    assert free_bytes(facts) == 2 << 20


def test_a_machine_that_tells_nothing_has_nothing_to_touch(tmp_path):
    assert free_bytes(tmp_path / "absent") == 0
    assert touch(0) == 0


def test_whole_steps_are_touched():
    assert touch(STEP_BYTES + 1) == STEP_BYTES


def test_touching_ends_when_its_time_is_up():
    assert touch(2 * STEP_BYTES, seconds_max=-1.0) == 0
