from __future__ import annotations

import json

import pytest
from pyspark.sql.types import StructType

from tidemill.core.errors import UserError
from tidemill.spark.sink.schema import check_schema


def schema(text: str) -> StructType:
    fields = {
        "binary": '"binary"',
        "string": '"string"',
        "int": '"integer"',
        "long": '"long"',
        "timestamp": '"timestamp"',
        "date": '"date"',
        "headers": '{"type":"array","containsNull":true,"elementType":{"type":"struct","fields":['
        '{"name":"key","type":"string","nullable":true,"metadata":{}},'
        '{"name":"value","type":"binary","nullable":true,"metadata":{}}]}}',
        "strings": '{"type":"array","containsNull":true,"elementType":"string"}',
    }
    return StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {
                    "name": column.split()[0],
                    "type": json.loads(fields[column.split()[1]]),
                    "nullable": True,
                    "metadata": {},
                }
                for column in text.split(", ")
            ],
        }
    )


ALL = "key binary, value binary, headers headers, topic string, partition int, timestamp timestamp"


@pytest.mark.parametrize(
    ("columns", "topic"),
    [
        (ALL, None),
        ("value string", "t"),
        ("VALUE string, Key string", "t"),
        (f"{ALL}, offset long, timestampType int", None),
    ],
)
def test_the_columns_of_a_record_can_be_written(columns, topic):
    check_schema(schema(columns), topic)


@pytest.mark.parametrize(
    ("columns", "topic", "sentence"),
    [
        ("key binary", "t", "the column value is missing"),
        ("value binary", None, "by option topic, or by a column topic"),
        ("value long", "t", "the column value must be binary or string, not bigint"),
        ("value binary, key int", "t", "the column key must be binary or string, not int"),
        ("value binary, partition long", "t", "partition must be int, not bigint"),
        ("value binary, topic binary", None, "topic must be string, not binary"),
        ("value binary, timestamp long", "t", "timestamp must be timestamp, not bigint"),
        ("value binary, headers strings", "t", "headers must be array<struct<key:string,value"),
        ("value binary, colour string", "t", "the column colour cannot be written"),
        ("value binary, Value binary", "t", "the column value appears twice"),
    ],
)
def test_unsupported_columns_are_refused_with_a_sentence(columns, topic, sentence):
    with pytest.raises(UserError) as refused:
        check_schema(schema(columns), topic)
    assert sentence in str(refused.value)
