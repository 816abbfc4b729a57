"""Values that break naive pipelines: numbers of all sizes, odd times, broken text, huge records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from string import ascii_letters

from tests.support.clients import Message

NUMBERS = (
    *("0", "-0", "1", "-1", "007", "1.5", "1e3", "1e308", "-1e308", "1e999", "-1e999", "5e-324"),
    *("NaN", "Infinity", "-Infinity", '"NaN"', '"Infinity"', '"1e999"', '"-1"', '"007"', '""'),
    *(str(2**31), str(2**53 + 1), str(2**63 - 1), str(-(2**63)), str(2**64), "9" * 42, "9" * 5_000),
    *("null", "true", "[]", "{}", '"x"', "0x10", "1_000", "+1", ".5", "1.", "--1"),
)
TIMES = (
    *("2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "2023-11-14T22:13:20.123456789123+01:00"),
    *("-290308-12-21T19:59:06.224192Z", "294247-01-10T04:00:54.775807Z", "0000-01-01T00:00:00Z"),
    *("0001-01-01T00:00:00Z", "1582-10-10T00:00:00Z", "1899-12-31T23:59:59Z", "9999-12-31T23:59Z"),
    *("+12345-01-01T00:00:00Z", "2023-02-30T00:00:00Z", "2023-11-14T25:61:61Z", "12:30:00", "T::"),
    *("2023-11-14T22:13:20+99:99", "2023-11-14T22:13:20 Mars/Base", "now", "epoch", "::", "//::"),
    *("14/Nov/2023:22:13:20 +0000", "14/Nov/0001:00:00:00 +1800", "99/Foo/9999:99:99:99 +9999"),
    *("14/Nov/-001:22:13:20 +0000", "14/nov/2023:22:13:20 +0000", "\u0661\u0664/Nov/2023:1:1:1 Z"),
)
TEXTS = (
    *("", " ", "/", "/a?b", "/a?b?c", "?", "\\", '\\"', '"', "\t", "\\u0000", "\\ud800", "\x01"),
    *("/\u00e9\u20ac\U0001f600", "/" + "x" * 9_000, "$1", "%", "{", "<script>", "\u2028", "\x7f"),
)
BROKEN = (
    *(b"", b" ", b"\x00", b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"{"),
    *(b"}", b"{}{}", b"{} {}", b"[]", b"null", b"1", b'"x"', b'{"a"}', b'{"a":}', b'{"a":1,}'),
    *(b"{,}", b"{'a':1}", b'{"a":1}//', b'\xef\xbb\xbf{"a":1}', b'{"a":"\xff"}', b'{"a":"\n"}'),
    *(b'{"a":1,"a":2}', b'{"b":{"a":1,"a":2}}', b'{"customer":1,"customer":2}', b'{"a":NaN}'),
    *(b'{"customer":{"x":"}"}}', b'{"a":1,"customer":[]}', b'{"cust\\u006fmer":1,"b":"\\ud800"}'),
    *(b'{"id":"\\ud800"}', b' {"a" : 1 } \n', b"{}", b"{ }", b'{"id":1}', b'{"id":"007"}'),
    *(b"[" * 60_000, b'{"a":' * 30_000, b'{"a":' * 300 + b"1" + b"}" * 300, b"9" * 60_000),
)
LARGE_BYTES = 1_048_400
"""With the rest of its batch, nearly the default of max.message.bytes."""


def hostile_messages(count: int, seed: int) -> list[Message]:
    """One for each key, which is its index; a few are near the limit of a topic."""
    random = Random(seed)
    values = [*BROKEN, *_each_odd_field()]
    values += [_value(random) for _ in range(count - len(values))]
    return [Message(value, key=b"%d" % index) for index, value in enumerate(values)]


def large_messages(first: int) -> list[Message]:
    """Records that fit into their topic, but not with seven headers more."""
    letters = Random(first).choices(ascii_letters, k=LARGE_BYTES - 200)
    wide = b'{"id":"' + "".join(letters).encode() + b'"}'
    garbage = b"garbage " * (LARGE_BYTES // 8 - 20)
    headers = (("big", b"h" * (LARGE_BYTES // 2)), ("tidemill.dead.attempt", b"99999999999"))
    return [
        Message(wide, key=b"%d" % first),
        Message(garbage, key=b"%d" % (first + 1)),
        Message(b"[" * (LARGE_BYTES // 2 - 300), key=b"%d" % (first + 2), headers=headers),
    ]


def compressible_messages(first: int) -> list[Message]:
    """Records of four megabytes that are small only while they are compressed."""
    return [
        Message(b'{"id":1,"text":"' + b"x" * 4_000_000 + b'"}', key=b"%d" % first),
        Message(b"x" * 4_000_000, key=b"%d" % (first + 1)),
    ]


def _each_odd_field() -> list[bytes]:
    good = {"time": '"2023-11-14T22:13:20Z"', "status": "200", "path": '"/"'}
    fields = [{name: number} for number in NUMBERS for name in ("latency_ms", "bytes", "status")]
    fields += [{"request_time": number, "id": number, "time": number} for number in NUMBERS]
    fields += [{"time": json.dumps(time)} for time in TIMES]
    return [_object(good | changed) for changed in fields]


def _object(fields: dict[str, str]) -> bytes:
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


def _value(random: Random) -> bytes:
    value = random.choice((_json, _combined, _combined))(random)
    if random.random() < 0.2:
        at = random.randrange(len(value))
        value = value[:at] + random.randbytes(random.randrange(3)) + value[at + 1 :]
    return value


def _json(random: Random) -> bytes:
    fields = {
        "time": json.dumps(_mostly("2023-11-14T22:13:20Z", random, TIMES)),
        "status": _mostly("200", random, NUMBERS),
        "path": json.dumps(_mostly("/", random, TEXTS)),
        "bytes": random.choice(NUMBERS),
        "latency_ms": random.choice(NUMBERS),
        "id": random.choice(NUMBERS),
    }
    return _object(fields)


def _mostly(usual: str, random: Random, odd: Sequence[str]) -> str:
    return random.choice(odd) if random.random() < 0.3 else usual


def _combined(random: Random) -> bytes:
    time = _mostly("14/Nov/2023:22:13:20 +0000", random, TIMES)
    path, agent = _mostly("/", random, TEXTS), _mostly("-", random, TEXTS)
    size, latency = _mostly("9", random, NUMBERS), _mostly("0.1", random, NUMBERS)
    line = f'1.2.3.4 - ann [{time}] "GET {path} HTTP/1.1" 200 {size} "-" "{agent}" {latency}'
    return line.encode()
