"""Compiled and interpreted code agree on any bytes (ADR 0005)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flavours import load

SECTION = bytes(
    load("pure", "record_encode").encode(
        [
            (0, 5, b"key", b"value", [(b"h", b"x"), (b"", None)]),
            (1, -70_000, None, None, []),
            (2, 2**62, b"", b"0123456789" * 10, []),
        ]
    )
)
changes = st.lists(
    st.tuples(st.integers(0, len(SECTION) - 1), st.integers(0, 255)), min_size=1, max_size=4
)


def outcome(flavour: str, section: bytes, count: int) -> list[object]:
    module = load(flavour, "record_walk")
    end = len(section)
    results: list[object] = []
    for call in (
        lambda: module.walk(section, 0, end, count),
        lambda: module.rows(section, 0, end, 0, count),
        lambda: module.find_time(section, 0, end, count, 2**63 - 1, 2**63),
        lambda: module.keyless(section, 0, end, count, 2),
        lambda: module.timestamps_outside(section, 0, end, count, 5, -1, 9, 2),
    ):
        try:
            results.append(call())
        except ValueError as err:
            results.append(str(err))
    return results


@given(section=st.binary(max_size=60), count=st.integers(0, 5))
def test_S23_any_bytes_have_the_same_outcome(section, count):
    assert outcome("compiled", section, count) == outcome("pure", section, count)


@settings(max_examples=300)
@given(changes=changes, count=st.integers(2, 4))
def test_S23_any_change_of_good_records_has_the_same_outcome(changes, count):
    section = bytearray(SECTION)
    for position, value in changes:
        section[position] = value
    assert outcome("compiled", bytes(section), count) == outcome("pure", bytes(section), count)
