"""Tidemill as a source and a sink of Apache Spark; `session` makes a session that suits it."""

from __future__ import annotations

from tidemill.spark.session import session

__all__ = ["session"]
