"""Spark looks for packages of this kind of name, and registers `DefaultSource` by itself."""

from __future__ import annotations

from tidemill.spark.data_source import TidemillSource as DefaultSource

__all__ = ["DefaultSource"]
