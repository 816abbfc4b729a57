"""Tidemill's own tagged fields and messages, used only between Tidemill brokers.

KIP-482 makes every receiver skip tags it does not know, so Kafka's clients and brokers ignore them.
Tags and API keys start at 10000 to avoid conflicts with those that Kafka adds later.
"""

from __future__ import annotations

from tools.schema_gen.jar import Schema, load_stored

__all__ = ["EXTENSIONS", "FIRST_OWN_KEY", "all_schemas"]

FIRST_OWN_KEY = 10000

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
    # Which of a follower's two sessions with this leader it is: 0 hot, 1 catch-up.
    ("FetchRequest", "FetchRequest"): [
        {
            "name": "ReplicaLane",
            "type": "int8",
            "versions": "15+",
            "taggedVersions": "15+",
            "tag": 10000,
            "default": "0",
            "ignorable": True,
        },
        # Whether the follower, if it is elected, will be silent after the answers it has seen.
        {
            "name": "ReplicaVouches",
            "type": "bool",
            "versions": "15+",
            "taggedVersions": "15+",
            "tag": 10001,
            "default": "false",
            "ignorable": True,
        },
    ],
    # The leader's log end: a follower finds out how far it is behind.
    ("FetchResponse", "PartitionData"): [
        {
            "name": "LogEndOffset",
            "type": "int64",
            "versions": "12+",
            "taggedVersions": "12+",
            "tag": 10000,
            "default": "-1",
            "ignorable": True,
        }
    ],
}

_PROGRESS_FIELDS: list[Schema] = [
    {"name": "BrokerId", "type": "int32", "versions": "0+"},
    {"name": "BrokerEpoch", "type": "int64", "versions": "0+", "default": "-1"},
    {
        "name": "Topics",
        "type": "[]ProgressTopic",
        "versions": "0+",
        "fields": [
            {"name": "TopicId", "type": "uuid", "versions": "0+"},
            {
                "name": "Partitions",
                "type": "[]ProgressPartition",
                "versions": "0+",
                "fields": [
                    {"name": "PartitionIndex", "type": "int32", "versions": "0+"},
                    {"name": "LeaderEpoch", "type": "int32", "versions": "0+"},
                    {"name": "FlushedOffset", "type": "int64", "versions": "0+"},
                ],
            },
        ],
    },
]


def _own(kind: str, name: str, key: int, fields: list[Schema]) -> Schema:
    return {
        "apiKey": key,
        "type": kind,
        "name": f"{name}{kind.capitalize()}",
        "validVersions": "0",
        "flexibleVersions": "0+",
        "fields": fields,
    }


OWN_MESSAGES: list[Schema] = [
    # What a follower has flushed since its last fetch. It is never answered.
    _own("request", "ReplicaProgress", 10001, _PROGRESS_FIELDS),
    _own("response", "ReplicaProgress", 10001, []),
]


def all_schemas() -> list[Schema]:
    """Kafka's messages and ours."""
    return load_stored() + OWN_MESSAGES
