from __future__ import annotations

import pytest

from tidemill.cli.record_format import RecordFormat, record_facts
from tidemill.client.consuming.consumer import FetchedRecords
from tidemill.core.errors import UserError
from tidemill.wire.records import Record

RECORD = Record(
    b"va\x1blue", b"key", headers=[("trace", b"1"), ("empty", None)], timestamp=7, offset=42
)
FETCHED = FetchedRecords("orders", 3, [RECORD], 43)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("%t-%p@%o", "orders-3@42"),
        ("%T %k=%v", "7 key=va\\x1blue"),
        ("%K %V", "3 6"),
        ("%h", "trace=1,empty="),
        ("100%% \\t\\\\", "100% \t\\"),
        ("", ""),
    ],
)
def test_patterns_are_filled_in(pattern, line):
    assert RecordFormat(pattern).render(FETCHED, RECORD) == line


def test_a_null_key_is_empty_and_has_size_minus_one():
    record = Record(None, None, offset=0)

    assert RecordFormat("[%k|%v] %K %V").render(FETCHED, record) == "[|] -1 -1"


@pytest.mark.parametrize("pattern", ["%x", "%", "\\q", "end\\"])
def test_an_unknown_field_is_refused_with_those_there_are(pattern):
    with pytest.raises(UserError, match="%t %p %o"):
        RecordFormat(pattern)


def test_json_keeps_text_as_text_and_other_bytes_as_base64():
    record = Record(b"\xff\x00", b"key", headers=[("h", b"\xfe")], timestamp=7, offset=42)

    assert record_facts(FETCHED, record) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 7,
        "key": "key",
        "value_base64": "/wA=",
        "headers": [{"key": "h", "value_base64": "/g=="}],
    }
