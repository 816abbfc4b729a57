"""Every message, in every version: what is written is what is read."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings

from tests.wire.messages import (
    all_cases,
    decode,
    encode,
    messages,
    newest_cases,
    oldest_cases,
    sample,
)
from tidemill.core.errors import ProtocolViolation
from tidemill.wire.message import Message


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_reading_gives_what_was_written(case):
    @settings(max_examples=12)
    @given(messages(case))
    def check(message: Message) -> None:
        assert decode(case.message_class, encode(message, case.version), case.version) == message

    check()


@pytest.mark.parametrize("case", oldest_cases() + newest_cases(), ids=str)
def test_a_message_cut_anywhere_is_a_violation(case):
    encoded = encode(sample(case, random.Random(1)), case.version)
    for cut in range(len(encoded)):
        with pytest.raises(ProtocolViolation):
            decode(case.message_class, encoded[:cut], case.version)


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_S7_a_byte_after_the_message_is_a_violation(case):
    encoded = encode(sample(case, random.Random(2)), case.version)
    with pytest.raises(ProtocolViolation, match="after the message's end"):
        decode(case.message_class, encoded + b"\0", case.version)


FLEXIBLE = [case for case in all_cases() if case.is_flexible]


@pytest.mark.parametrize("case", FLEXIBLE, ids=str)
def test_T6_unknown_tagged_fields_are_skipped(case):
    message = sample(case, random.Random(3), is_full=False)
    encoded = encode(message, case.version)
    assert encoded[-1] == 0  # the message's own tag section, empty

    with_tags = encoded[:-1] + b"\x02" + b"\x88\x27\x03abc" + b"\x89\x27\x00"

    assert decode(case.message_class, with_tags, case.version) == message


@pytest.mark.parametrize("case", newest_cases(), ids=str)
def test_versions_outside_the_schema_are_refused(case):
    message = sample(case, random.Random(4), is_full=False)
    encoded = encode(message, case.version)
    for version in (case.schema.versions.low - 1, case.schema.versions.high + 1):
        with pytest.raises(ValueError, match="has no version"):
            encode(message, version)
        with pytest.raises(ValueError, match="has no version"):
            decode(case.message_class, encoded, version)
