"""Tidemill's own tagged fields, used only between Tidemill brokers.

KIP-482 makes every receiver skip tags it does not know, so Kafka's clients and brokers ignore them.
Tags start at 10000 to avoid conflicts with tags that Kafka adds later.
"""

from __future__ import annotations

from tools.schema_gen.jar import Schema

__all__ = ["EXTENSIONS"]

EXTENSIONS: dict[tuple[str, str], list[Schema]] = {
    # The follower's flushed offset, which the leader's durable offset waits for.
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
