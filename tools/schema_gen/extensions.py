"""Tidemill's own tagged fields, spoken between Tidemill brokers only.

KIP-482 makes every receiver skip tags it does not know, so that Kafka's clients and brokers never
notice. Tags start at 10000 to stay clear of whatever Kafka adds next.
"""

from __future__ import annotations

from tools.schema_gen.jar import Schema

__all__ = ["EXTENSIONS"]

EXTENSIONS: dict[tuple[str, str], list[Schema]] = {
    # Where the follower's log is flushed up to: what the leader's durable offset waits for.
    ("FetchRequest", "FetchPartition"): [
        {
            "name": "FlushedOffset",
            "type": "int64",
            "versions": "12+",
            "taggedVersions": "12+",
            "tag": 10000,
            "default": "-1",
            "ignorable": True,
        }
    ],
}
