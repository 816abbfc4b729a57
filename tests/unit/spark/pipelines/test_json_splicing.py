from __future__ import annotations

import json

import pytest

from tidemill.spark.pipelines.json_splicing import Unsplittable, member_prefix, split_object


def spliced(value: bytes, name: str = "new") -> bytes:
    parts = split_object(value, ("id",), name)
    comma = b"," if parts.has_members else b""
    return parts.head + comma + member_prefix(name).encode() + b"0" + parts.tail


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{}", b'{"new":0}'),
        (b" { } \n", b' {"new":0 } \n'),
        (b'{"a" : 1.50 }', b'{"a" : 1.50,"new":0 }'),
        (b'{"a":1e400,"b":-0}', b'{"a":1e400,"b":-0,"new":0}'),
        (b'{"a":' + b"9" * 5_000 + b"}", b'{"a":' + b"9" * 5_000 + b',"new":0}'),
        (b'{"a":"\\u00e9\xc3\xa9\\ud800"}', b'{"a":"\\u00e9\xc3\xa9\\ud800","new":0}'),
    ],
    ids=range(6),
)
def test_every_other_byte_stays_as_it_was(value, expected):
    assert spliced(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"new":{"x":"}"}}', b'{"new":0}'),
        (b'{ "new" : 1 , "a":1}', b'{ "a":1,"new":0}'),
        (b'{"a":1 , "new" : [] }', b'{"a":1,"new":0 }'),
        (b'{"a":1,"n\\u0065w":2, "b":3}', b'{"a":1, "b":3,"new":0}'),
    ],
    ids=range(4),
)
def test_an_old_member_of_the_same_name_is_replaced(value, expected):
    assert spliced(value) == expected
    assert json.loads(expected)["new"] == 0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the record is empty"),
        (b" ", "the record is empty"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"1", "not a JSON object"),
        (b"{", "not JSON"),
        (b'{"a":1,}', "not JSON"),
        (b'{"a" 1}', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":"\n"}', "not JSON"),
        (b'{"a":007}', "not JSON"),
        (b"{} {}", "not JSON: there is more behind the object"),
        (b'{"a":1}x', "not JSON: there is more behind the object"),
        (b'{"a":NaN}', "not JSON: NaN"),
        (b'{"a":1,"a":2}', "the field 'a' is there twice"),
        (b'{"b":{"a":1,"a":2}}', "the field 'a' is there twice"),
        (b'{"a":' * 100_000, "nested too deep"),
    ],
    ids=range(18),
)
def test_what_is_not_one_whole_object_is_refused_with_a_reason(value, reason):
    with pytest.raises(Unsplittable) as refused:
        split_object(value, ("id",), "new")

    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'{"a":{"b":"007"}}', "007"),
        (b'{"a":{"b":1.50}}', "1.50"),
        (b'{"a":{"b":%s}}' % (b"9" * 42), "9" * 42),
        (b'{"a":{"b":true}}', "true"),
        (b'{"a":{"b":null}}', None),
        (b'{"a":{"b":{"c":1}}}', None),
        (b'{"a":[1]}', None),
        (b'{"a.b":1}', None),
        (b'{"a":{"b":"\\ud800"}}', None),
    ],
    ids=range(9),
)
def test_a_field_is_looked_up_as_the_text_that_it_has(value, found):
    assert split_object(value, ("a", "b"), "new").found == found
