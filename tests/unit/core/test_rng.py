"""Seeded randomness: a seed always draws the same numbers, since found seeds rely on them."""

from __future__ import annotations

from random import Random

import pytest

from tidemill.core.rng import SeededRng

LIMITS = [1, 2, 3, 5, 8, 1_000, 2**31, 2**64 + 1]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_seed_draws_the_numbers_of_the_standard_generator(limit):
    ours, standard = SeededRng(7), Random(7)
    drawn = [ours.below(limit) for _ in range(100)]
    assert drawn == [standard.randrange(limit) for _ in range(100)]


@pytest.mark.parametrize("limit", [0, -1])
def test_there_is_no_number_below_zero(limit):
    with pytest.raises(ValueError, match="no number below"):
        SeededRng(7).below(limit)
