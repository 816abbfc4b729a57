from __future__ import annotations

import pytest

from tests.support.flavours import load


def test_bytes_are_copied_to_their_position():
    target = bytearray(b"......")
    load("pure", "byte_copy").copy_bytes(memoryview(target), 2, b"abcdef", 3, 2)
    assert target == b"..de.."


@pytest.mark.parametrize(
    ("at", "start", "size"), [(-1, 0, 1), (0, -1, 1), (5, 0, 2), (0, 5, 2), (0, 0, -1)]
)
def test_a_copy_outside_a_buffer_is_refused(at, start, size):
    with pytest.raises(ValueError, match="outside"):
        load("pure", "byte_copy").copy_bytes(memoryview(bytearray(6)), at, b"abcdef", start, size)


def test_the_module_has_no_other_names():
    assert not hasattr(load("pure", "byte_copy"), "move_bytes")
