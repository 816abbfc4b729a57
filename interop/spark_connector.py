"""Spark's own Kafka connector, in the Spark that it was built for (as the bench has it)."""

from __future__ import annotations

import json

from bench import spark_connector
from interop.brokers import CALLS, Brokers, create_topic, make_calls
from interop.programs import HERE, Skipped, require, run_program

__all__ = ["spark_reads"]

SHARES = {"none": "n < 0", "one": "n < 10", "half": "n < 500", "all": "n >= 0"}
"""Views of 0, 1, 50 and 100 % of a topic."""
_BOUNDS = {"none": 0, "one": 10, "half": 500, "all": CALLS}


def spark_reads(brokers: Brokers) -> None:
    """It passes over what is held, and reads views to their end."""
    if not spark_connector.have_spark() or not spark_connector.provide():
        raise Skipped("there is no Java, or no connector")
    make_calls(brokers)
    for name, condition in SHARES.items():
        view = {"tidemill_view_of": "calls", "tidemill_view_filter": condition}
        create_topic(brokers, f"calls.{name}", **view)
    expected = {f"calls.{name}": list(range(0, end, 3)) for name, end in _BOUNDS.items()}
    expected["calls"] = expected["calls.all"]
    printed = run_program(
        *(str(spark_connector.PYTHON), "-P", str(HERE / "spark" / "read_topics.py")),
        *(brokers.bootstrap, spark_connector.CLASS_PATH, *expected),
    )
    found = json.loads(printed.splitlines()[-1])
    require(found == expected, found)
