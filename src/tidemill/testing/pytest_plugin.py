"""A fixture for your tests: `pytest_plugins = ["tidemill.testing.pytest_plugin"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.testing.embedded import RunningBroker, broker

__all__ = ["tidemill_broker"]


@pytest.fixture
def tidemill_broker() -> Iterator[RunningBroker]:
    """A real broker for one test."""
    with broker() as running:
        yield running
