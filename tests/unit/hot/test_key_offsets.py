from __future__ import annotations

from functools import partial

import pytest

from tests.support.flavours import FLAVOURS, load

SECRET = int.from_bytes(bytes(range(16)), "little")
SIPHASH_2_4_128 = [
    "a3817f04ba25a8e66df67214c7550293",
    "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4",
    "9c70b60c5267a94e5f33b6b02985ed51",
]
"""Of no byte, of 00, of 00 01 and of 00 01 02, under the key 00 .. 0f: its authors' own vectors."""


@pytest.fixture(params=FLAVOURS)
def make(request):
    return partial(table, request.param)


def table(flavour, slot_count, secret):
    return load(flavour, "key_offsets").KeyOffsets(bytearray(24 * slot_count), secret)


def digest(keys, data, start=0, size=None):
    keys.digest(data, start, len(data) if size is None else size)
    return (keys.low.to_bytes(8, "little") + keys.high.to_bytes(8, "little")).hex()


@pytest.mark.parametrize("size", range(4))
def test_the_hash_is_siphash(make, size):
    assert digest(make(8, SECRET), bytes(range(size))) == SIPHASH_2_4_128[size]


def test_both_flavours_hash_every_length_alike():
    made = [table(flavour, 8, SECRET) for flavour in FLAVOURS]
    for size in range(70):
        data = bytes(7 * at & 0xFF for at in range(size))
        assert digest(made[0], data) == digest(made[1], data)


def test_a_hash_covers_only_its_range(make):
    keys = make(8, SECRET)
    assert digest(keys, b"xx\x00\x01yy", 2, 2) == SIPHASH_2_4_128[2]


def test_another_secret_gives_another_hash(make):
    assert digest(make(8, SECRET), b"a") != digest(make(8, SECRET + (1 << 100)), b"a")


def test_the_newest_offset_of_each_key_is_kept_in_any_order(make):
    keys = make(64, SECRET)
    for offset, key in [(5, b"a"), (9, b"b"), (7, b"a"), (3, b"b"), (0, b"c")]:
        assert keys.put(key, 0, 1, offset)
    assert [keys.newest(key, 0, 1) for key in (b"a", b"b", b"c", b"d")] == [7, 9, 0, -1]
    assert keys.key_count == 3


def test_a_full_table_takes_no_new_key_but_newer_offsets(make):
    keys = make(8, SECRET)
    room = keys.key_count_max
    assert room == 6
    assert all(keys.put(b"%d" % number, 0, 1, number) for number in range(room))
    assert not keys.put(b"x", 0, 1, 99)
    assert keys.put(b"0", 0, 1, 50)
    assert keys.newest(b"0", 0, 1) == 50
    assert keys.newest(b"x", 0, 1) == -1


def test_many_keys_are_all_found_again(make):
    keys = make(1_000, SECRET)
    names = [b"key-%d" % number for number in range(750)]
    for offset, name in enumerate(names):
        assert keys.put(name, 0, len(name), offset)
    assert [keys.newest(name, 0, len(name)) for name in names] == list(range(750))


@pytest.mark.parametrize(("start", "size"), [(-1, 1), (0, 4), (4, 0), (2, 2), (0, -1)])
def test_a_range_outside_the_buffer_is_refused(make, start, size):
    with pytest.raises(ValueError, match="outside"):
        make(8, SECRET).put(b"abc", start, size, 0)


def test_a_table_needs_room(make):
    with pytest.raises(ValueError, match="four slots"):
        make(3, SECRET)
