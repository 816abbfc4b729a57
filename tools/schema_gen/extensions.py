"""Tidemill's own tagged fields and messages, between its brokers and for `tidemill cluster repair`.

KIP-482 makes every receiver skip tags it does not know, so Kafka's clients and brokers ignore them.
Tags and API keys start at 10000 to avoid conflicts with those that Kafka adds later.
"""

from __future__ import annotations

from tools.schema_gen.jar import Schema, load_stored

__all__ = ["EXTENSIONS", "FIRST_OWN_KEY", "all_schemas"]

FIRST_OWN_KEY = 10000


def _tagged(name: str, kind: str, since: int, tag: int, default: str = "-1") -> Schema:
    return {
        "name": name,
        "type": kind,
        "versions": f"{since}+",
        "taggedVersions": f"{since}+",
        "tag": tag,
        "default": default,
        "ignorable": True,
    }


EXTENSIONS: dict[tuple[str, str], list[Schema]] = {
    # The follower's flushed offset, which the leader's durable offset waits for.
    ("FetchRequest", "FetchPartition"): [_tagged("FlushedOffset", "int64", 12, 10000)],
    # Which of a follower's two sessions with this leader it is: 0 hot, 1 catch-up.
    ("FetchRequest", "FetchRequest"): [
        _tagged("ReplicaLane", "int8", 15, 10000, default="0"),
        # Whether the follower, if it is elected, will be silent after the answers it has seen.
        _tagged("ReplicaVouches", "bool", 15, 10001, default="false"),
    ],
    # The leader's log end: a follower finds out how far it is behind.
    ("FetchResponse", "PartitionData"): [
        _tagged("LogEndOffset", "int64", 12, 10000),
        # What the follower asks for is lost on all replicas, up to here, and was of this epoch.
        _tagged("LostEndOffset", "int64", 12, 10001),
        _tagged("LostEpoch", "int32", 12, 10002),
    ],
    # Whose log a person has chosen, and in which leader epoch the logs were found to differ.
    ("ElectLeadersRequest", "ElectLeadersRequest"): [
        _tagged("ChosenLeader", "int32", 2, 10000),
        _tagged("ChosenInEpoch", "int32", 2, 10001),
    ],
    # Why a broker is not let in, if only a person can change that.
    ("DescribeClusterResponse", "DescribeClusterBroker"): [
        _tagged("KeptOutBecause", "string", 0, 10000, default=""),
        # Whether it reaches the store and gets no answer from the controller.
        _tagged("HearsNoController", "bool", 0, 10001, default="false"),
    ],
    # Where a log ends; and of a cut that the replica refuses, where, what was committed, and when.
    ("DescribeLogDirsResponse", "DescribeLogDirsPartition"): [
        _tagged("LogEndOffset", "int64", 2, 10000),
        _tagged("RefusedCutOffset", "int64", 2, 10001),
        _tagged("CommittedOffset", "int64", 2, 10002),
        _tagged("RefusedInEpoch", "int32", 2, 10003),
    ],
}


def _field(name: str, kind: str, default: str | None = None) -> Schema:
    field: Schema = {"name": name, "type": kind, "versions": "0+"}
    return field if default is None else field | {"default": default}


_ASKING_BROKER = [_field("BrokerId", "int32"), _field("BrokerEpoch", "int64", "-1")]


def _by_partition(what: str, *fields: Schema) -> Schema:
    """Fields of each partition, in topics: `Topics` of `<what>Topic` of `<what>Partition`."""
    partitions = _field("Partitions", f"[]{what}Partition")
    partitions["fields"] = [_field("PartitionIndex", "int32"), *fields]
    topics = _field("Topics", f"[]{what}Topic")
    topics["fields"] = [_field("TopicId", "uuid"), partitions]
    return topics


_PROGRESS_FIELDS = [
    *_ASKING_BROKER,
    _by_partition("Progress", _field("LeaderEpoch", "int32"), _field("FlushedOffset", "int64")),
]
_ASKED_ENDS_FIELDS = [
    *_ASKING_BROKER,
    _by_partition("AskedLog", _field("LeaderEpoch", "int32")),
]
_TOLD_ENDS_FIELDS = [
    _field("ErrorCode", "int16"),
    _by_partition(
        "ToldLog",
        _field("ErrorCode", "int16"),
        _field("LastEpoch", "int32", "-1"),
        _field("EndOffset", "int64", "-1"),
    ),
]
_ASKED_BATCHES_FIELDS = [
    _field("TopicId", "uuid"),
    _field("PartitionIndex", "int32"),
    _field("FetchOffset", "int64"),
    _field("MaxBytes", "int32"),
]
_TOLD_BATCHES_FIELDS = [
    _field("ErrorCode", "int16"),
    _field("Records", "records") | {"nullableVersions": "0+"},
    # With an error: what was asked for is damaged here too, or lost, up to here.
    _tagged("DamageEndOffset", "int64", 0, 10000),
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
    # Where logs end whose partitions have no leader, before the longest of them is elected.
    _own("request", "ReplicaLogEnds", 10002, _ASKED_ENDS_FIELDS),
    _own("response", "ReplicaLogEnds", 10002, _TOLD_ENDS_FIELDS),
    # Stored batches as they are, for a replica that has lost its own to damage.
    _own("request", "ReplicaBatches", 10003, _ASKED_BATCHES_FIELDS),
    _own("response", "ReplicaBatches", 10003, _TOLD_BATCHES_FIELDS),
]


def all_schemas() -> list[Schema]:
    """Kafka's messages and ours."""
    return load_stored() + OWN_MESSAGES
