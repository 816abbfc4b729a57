"""The composition root: builds the parts of one broker, starts and stops them. Decides nothing."""

from __future__ import annotations

from tidemill.broker.broker import Broker

__all__ = ["Broker"]
