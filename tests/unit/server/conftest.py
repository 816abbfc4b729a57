"""Fixtures of the server tests."""

from __future__ import annotations

import pytest

from tests.unit.server.one_broker import OneBroker


@pytest.fixture
def broker():
    """One broker that is the controller and leads everything."""
    made = OneBroker()
    yield made
    made.close()
