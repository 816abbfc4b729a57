"""Brokers for tests: Tidemill ships them for its users and uses them in its own tests."""

from __future__ import annotations

from tidemill.testing.embedded import RunningBroker, broker

__all__ = ["RunningBroker", "broker"]
