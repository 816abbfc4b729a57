"""Damaged frames never raise anything but `ProtocolViolation`, and never cost much."""

from __future__ import annotations

import random

import pytest

from tests.wire.mutate import good_requests, is_accepted, run


def test_undamaged_frames_are_accepted():
    assert all(is_accepted(frame) for frame in good_requests(random.Random(5)))


@pytest.mark.parametrize("seed", range(10))
def test_S7_damaged_frames_give_violations_and_bounded_memory(seed):
    tally = run(2_000, seed, measure_every=40)
    # Both ways are taken: damage inside a string or a number is not seen here.
    assert tally.refused > 1_000
    assert tally.accepted > 100


def test_frames_of_noise_are_refused():
    rng = random.Random(9)
    frames = [rng.randbytes(rng.randrange(200)) for _ in range(1_000)]
    assert not any(is_accepted(frame) for frame in frames)
