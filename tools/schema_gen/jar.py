"""Kafka's schemas: read from its jars, stored without prose in `schemas.json`.

The protocol comes from `kafka-clients`, the records of a coordinator's log from that coordinator's
jar.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

__all__ = [
    "RECORD_KINDS",
    "Schema",
    "load_api_names",
    "load_stored",
    "read_api_names",
    "read_jars",
    "store",
    "store_api_names",
]

Schema = dict[str, Any]

STORED = Path(__file__).with_name("schemas.json")
STORED_NAMES = Path(__file__).with_name("api_names.json")
"""Every API of that Kafka by key, also those whose schemas are not stored."""

_FOLDER = "common/message/"
_LINE_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)

# The client-facing APIs (docs: the table of supported APIs), and AlterPartition and Envelope, which
# brokers send to the controller; the others are KRaft's or Streams'.
# fmt: off
API_KEYS = frozenset({
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51,
    55, 56, 57, 58, 60, 61, 64, 65, 66, 68, 69, 71, 72, 74, 75, 76, 77, 78, 79, 90, 91, 92,
})
# fmt: on
OTHERS = frozenset(
    {
        "ConsumerProtocolAssignment",
        "ConsumerProtocolSubscription",
        "RequestHeader",
        "ResponseHeader",
    }
)
# The records in the group coordinator's log, each with a key and a value.
GROUP_RECORDS = (
    "OffsetCommit",
    "GroupMetadata",
    "ConsumerGroupMetadata",
    "ConsumerGroupMemberMetadata",
    "ConsumerGroupTargetAssignmentMetadata",
    "ConsumerGroupTargetAssignmentMember",
    "ConsumerGroupCurrentMemberAssignment",
    "ConsumerGroupRegularExpression",
)
TRANSACTION_RECORDS = ("TransactionLog",)
"""The record in the transaction coordinator's log."""
RECORDS = frozenset(
    f"{name}{part}" for name in (*GROUP_RECORDS, *TRANSACTION_RECORDS) for part in ("Key", "Value")
)
RECORD_KINDS = ("coordinator-key", "coordinator-value")

_KEPT = ("apiKey", "type", "name", "validVersions", "flexibleVersions", "latestVersionUnstable")
_KEPT_OF_FIELD = (
    "name",
    "type",
    "versions",
    "nullableVersions",
    "flexibleVersions",
    "taggedVersions",
    "tag",
    "default",
    "ignorable",
)


def read_jars(paths: list[Path]) -> list[Schema]:
    """The schemas of all wanted messages, reduced to what determines bytes, in a stable order."""
    wanted = [_strip(schema) for path in paths for schema in _schemas(path) if _is_wanted(schema)]
    return sorted(wanted, key=_sort_key)


def _schemas(path: Path) -> list[Schema]:
    with zipfile.ZipFile(path) as jar:
        names = [n for n in jar.namelist() if n.startswith(_FOLDER) and n.endswith(".json")]
        return [json.loads(_LINE_COMMENT.sub("", jar.read(name).decode())) for name in names]


def _sort_key(schema: Schema) -> tuple[bool, int, str]:
    """APIs by their key, then messages without a key, then records by their type."""
    return schema["type"] in RECORD_KINDS, schema.get("apiKey", 1 << 16), schema["name"]


def store(schemas: list[Schema]) -> None:
    STORED.write_text(json.dumps(schemas, indent=1) + "\n")


def read_api_names(paths: list[Path]) -> dict[int, str]:
    """Every API that Kafka serves in some version, on brokers or controllers, by key."""
    names = {
        schema["apiKey"]: schema["name"].removesuffix("Request")
        for path in paths
        for schema in _schemas(path)
        if schema["type"] == "request" and schema["validVersions"] != "none"
    }
    return dict(sorted(names.items()))


def store_api_names(names: dict[int, str]) -> None:
    STORED_NAMES.write_text(json.dumps(names, indent=1) + "\n")


def load_api_names() -> dict[int, str]:
    return {int(key): name for key, name in json.loads(STORED_NAMES.read_text()).items()}


def load_stored() -> list[Schema]:
    schemas: list[Schema] = json.loads(STORED.read_text())
    return schemas


def _is_wanted(schema: Schema) -> bool:
    if schema["type"] in RECORD_KINDS:
        return schema["name"] in RECORDS
    return schema.get("apiKey") in API_KEYS or schema["name"] in OTHERS


def _strip(schema: Schema) -> Schema:
    kept = {key: schema[key] for key in _KEPT if key in schema}
    kept["fields"] = [_strip_field(field) for field in schema["fields"]]
    if "commonStructs" in schema:
        kept["commonStructs"] = [_strip_field(struct) for struct in schema["commonStructs"]]
    return kept


def _strip_field(field: Schema) -> Schema:
    kept = {key: field[key] for key in _KEPT_OF_FIELD if key in field}
    if "fields" in field:
        kept["fields"] = [_strip_field(nested) for nested in field["fields"]]
    return kept
