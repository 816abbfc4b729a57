"""Spark imports every package named `pyspark_*` and registers its `DefaultSource`."""

from __future__ import annotations

from tidemill.spark.data_source import TidemillSource as DefaultSource

__all__ = ["DefaultSource"]
