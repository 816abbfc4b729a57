"""What Tidemill ships for the tests of others, and uses in its own."""

from __future__ import annotations

from tidemill.testing.embedded import RunningBroker, broker

__all__ = ["RunningBroker", "broker"]
