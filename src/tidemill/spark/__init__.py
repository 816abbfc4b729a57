"""Tidemill as a source and a sink of Apache Spark; `session` makes a session that suits it."""

from __future__ import annotations

from tidemill.spark.session import session
from tidemill.spark.topic_writing import stream_to_topic, write_topic

__all__ = ["session", "stream_to_topic", "write_topic"]
