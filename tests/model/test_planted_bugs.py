"""The models find the planted bugs of the rules that they run."""

from __future__ import annotations

import pytest

from tests.model.planted import HUNTS, find_in_model


@pytest.mark.slow
@pytest.mark.parametrize("name", list(HUNTS))
def test_the_exploration_finds_a_planted_bug(name):
    assert find_in_model(name).startswith("Broken: ")
