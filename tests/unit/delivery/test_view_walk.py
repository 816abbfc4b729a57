"""Filtering stored batches: what is served as it is stored, copied, left out, skipped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.limits import FILTER_LOOP_BATCH_BYTES_MAX, REPACKED_BYTES_MIN
from tidemill.delivery.filter.program import compile_selector
from tidemill.delivery.matchless import MatchlessRanges
from tidemill.delivery.view_walk import ViewWalk
from tidemill.wire import compression
from tidemill.wire.batch import CorruptBatch, iter_headers, read_header, verify, write_checksum
from tidemill.wire.records import Record, build_batch, iter_records

EU = "region = 'eu'"
NOW_MS = 1_700_000_000_000
CODECS = (
    compression.NONE,
    compression.GZIP,
    compression.SNAPPY,
    compression.LZ4,
    compression.ZSTD,
)


def batch(base_offset, regions, *, codec=compression.NONE, value=b"v", epoch=5, **options):
    """One batch with a record per region."""
    records = [
        Record(value, timestamp=NOW_MS + place, headers=[("region", region.encode())])
        for place, region in enumerate(regions)
    ]
    made = build_batch(records, codec=codec, base_offset=base_offset, leader_epoch=epoch, **options)
    return bytes(made)


def walk_of(selector=EU, *, fetch_offset=0, start_offset=None, bytes_max=1 << 20, matchless=None):
    return ViewWalk(
        compile_selector(selector),
        partition=0,
        fetch_offset=fetch_offset,
        start_offset=fetch_offset if start_offset is None else start_offset,
        leader_epoch=3,
        bytes_max=bytes_max,
        matchless=matchless or MatchlessRanges(),
    )


def run(walk, *batches):
    """The answer, and how many jobs went to a thread."""
    steps = walk.steps(batches)
    jobs, outcome = 0, None
    while True:
        try:
            job = steps.send(outcome)
        except StopIteration:
            return walk.answer(), jobs
        outcome = None
        if job is not None:
            jobs += 1
            outcome = job()


def shape(answer):
    """Per batch of an answer: S for a skip batch, else the offsets of its records."""
    found = []
    for position, header in iter_headers(answer):
        view = memoryview(answer)[position : position + header.size_bytes]
        verify(view, header)
        if header.is_control and header.producer_id < 0:
            found.append(("skip", header.last_offset))
        else:
            found.append([record.offset for record in iter_records(view)])
    return found


def test_batches_that_match_whole_are_one_view_of_the_stored_bytes():
    stored = batch(0, ["eu", "eu"]) + batch(2, ["eu"])
    walk = walk_of()
    answer, _ = run(walk, stored)
    assert isinstance(answer, memoryview)
    assert answer.obj is stored
    assert bytes(answer) == stored
    assert walk.next_offset == 3


def test_a_batch_without_a_match_is_left_out_and_skipped():
    answer, _ = run(walk_of(), batch(0, ["us"] * 3))
    assert shape(answer) == [("skip", 2)]
    assert read_header(answer).partition_leader_epoch == 5


def test_nothing_to_look_at_is_an_empty_answer():
    assert run(walk_of())[0] == b""


@pytest.mark.parametrize("codec", CODECS)
def test_the_matching_records_keep_offsets_times_and_producer(codec):
    regions = ["us", "eu", "us", "eu", "us"]
    stored = batch(
        10,
        regions,
        codec=codec,
        producer_id=9,
        producer_epoch=2,
        base_sequence=4,
        transactional=True,
    )
    walk = walk_of(fetch_offset=10)
    answer, _ = run(walk, stored)
    assert shape(answer) == [[11, 13], ("skip", 14)]
    made, old = read_header(answer), read_header(stored)
    for name in ("base_offset", "last_offset_delta", "partition_leader_epoch", "base_timestamp"):
        assert getattr(made, name) == getattr(old, name)
    for name in ("producer_id", "producer_epoch", "base_sequence", "is_transactional"):
        assert getattr(made, name) == getattr(old, name)
    assert made.max_timestamp == NOW_MS + 3
    kept = [
        (one.offset, one.timestamp) for one in iter_records(memoryview(answer)[: made.size_bytes])
    ]
    assert kept == [(11, NOW_MS + 1), (13, NOW_MS + 3)]
    assert walk.sent_batches == {9: [10]}


def test_no_skip_batch_if_the_last_offset_is_that_of_a_record_sent():
    answer, _ = run(walk_of(), batch(0, ["us", "eu"]))
    assert shape(answer) == [[1]]


def test_records_before_the_fetch_offset_are_not_sent():
    answer, _ = run(walk_of(fetch_offset=2), batch(0, ["eu", "eu", "us", "eu"]))
    assert shape(answer) == [[3]]
    answer, _ = run(walk_of(fetch_offset=2), batch(0, ["eu", "eu", "us", "us"]))
    assert shape(answer) == [("skip", 3)]


def test_control_batches_stay():
    marker = bytes(
        build_batch(
            [Record(b"\0\0\0\0\0\0", b"\0\0\0\0")],
            base_offset=1,
            leader_epoch=5,
            producer_id=9,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
    )
    answer, _ = run(walk_of(), batch(0, ["us"]) + marker)
    assert bytes(answer) == marker


def test_the_answer_ends_before_a_batch_that_has_no_room():
    one = batch(0, ["eu"])
    stored = one + batch(1, ["eu"]) + batch(2, ["eu"])
    walk = walk_of(bytes_max=2 * len(one))
    assert shape(run(walk, stored)[0]) == [[0], [1]]
    assert walk.next_offset == 2


def test_the_first_match_is_sent_whatever_its_size():
    walk = walk_of(bytes_max=1)
    assert shape(run(walk, batch(0, ["us"]) + batch(1, ["eu"]) + batch(2, ["eu"]))[0]) == [[1]]


@pytest.mark.parametrize("codec", CODECS)
def test_much_of_a_compressed_batch_has_the_codec_that_its_readers_know(codec):
    """kafkajs knows gzip alone, which takes too long here."""
    stored = batch(0, ["us", "eu", "us", "eu"], codec=codec, value=bytes(REPACKED_BYTES_MIN))
    answer = run(walk_of(), stored)[0]
    assert shape(answer) == [[1, 3]]
    expected = compression.NONE if codec == compression.GZIP else codec
    assert read_header(answer).codec == expected


@pytest.mark.parametrize("codec", CODECS)
def test_little_of_a_compressed_batch_is_not_compressed_again(codec):
    stored = batch(0, ["us", "eu", "us", "eu"], codec=codec, value=bytes(10))
    assert read_header(run(walk_of(), stored)[0]).codec == compression.NONE


def test_S18_a_batch_that_decompresses_to_much_does_so_in_a_thread():
    value = bytes(FILTER_LOOP_BATCH_BYTES_MAX)
    stored = batch(0, ["us", "eu"], codec=compression.ZSTD, value=value)
    answer, jobs = run(walk_of(), stored)
    assert shape(answer) == [[1]]
    assert jobs == 2


def test_long_work_gives_the_loop_its_turns():
    stored = b"".join(batch(n * 500, ["us"] * 500, value=bytes(200)) for n in range(20))
    steps = walk_of().steps([stored])
    assert sum(1 for one in steps if one is None) >= 5


def test_the_time_of_a_batch_with_append_time_is_that_of_all_its_records():
    stored = bytearray(batch(0, ["us", "eu"]))
    stored[22] |= 0x08
    write_checksum(stored)
    last = read_header(stored).max_timestamp
    answer, _ = run(walk_of(f"_timestamp = {last} AND region = 'eu'"), bytes(stored))
    assert shape(answer) == [[1]]
    assert read_header(answer).max_timestamp == last
    assert shape(run(walk_of(f"_timestamp < {last}"), bytes(stored))[0]) == [("skip", 1)]


def test_a_batch_with_a_lying_count_is_damage_and_costs_no_memory():
    stored = bytearray(batch(0, ["eu"]))
    stored[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptBatch):
        run(walk_of(), bytes(stored))


def test_damaged_records_are_damage():
    stored = bytearray(batch(0, ["eu", "us"]))
    stored[61] = 0xFE
    with pytest.raises(CorruptBatch, match="offset 0"):
        run(walk_of(), bytes(stored))


# --- jumps ---------------------------------------------------------------------------------------


def quiet_batches(first, count):
    return b"".join(batch(first + n, ["us"], value=bytes(9_000)) for n in range(count))


def test_long_ranges_without_a_match_are_remembered_and_short_ones_not():
    walk = walk_of()
    run(walk, quiet_batches(0, 10) + batch(10, ["eu"]) + batch(11, ["us"]))
    assert walk.quiet == [(0, 10)]


def test_known_ranges_are_not_looked_at_again():
    known = MatchlessRanges()
    known.add(0, 10)
    damaged = bytearray(quiet_batches(0, 10))
    damaged[61] = 0xFE
    walk = walk_of(matchless=known)
    assert shape(run(walk, bytes(damaged) + batch(10, ["eu"]))[0]) == [[10]]


def test_a_reader_that_jumped_to_the_end_gets_a_skip_batch_of_the_epoch_there():
    answer, _ = run(walk_of(fetch_offset=4, start_offset=90))
    assert shape(answer) == [("skip", 89)]
    assert read_header(answer).partition_leader_epoch == 3


@given(
    batches=st.lists(
        st.tuples(
            st.lists(st.sampled_from(["eu", "us"]), min_size=1, max_size=6),
            st.sampled_from([compression.NONE, compression.LZ4]),
        ),
        min_size=1,
        max_size=6,
    ),
    bytes_max=st.integers(1, 1_000),
    fetch_offset=st.integers(0, 5),
)
def test_I40_a_drained_view_is_the_filtered_base(batches, bytes_max, fetch_offset):
    """A client that follows each answer gets every match once and reaches the end."""
    stored, offset, wanted = [], 0, []
    for regions, codec in batches:
        stored.append(batch(offset, regions, codec=codec))
        wanted += [offset + n for n, region in enumerate(regions) if region == "eu"]
        offset += len(regions)
    position = min(fetch_offset, offset)
    wanted = [one for one in wanted if one >= position]
    got = []
    while position < offset:
        left = [one for one in stored if read_header(one).next_offset > position]
        answer, _ = run(walk_of(fetch_offset=position, bytes_max=bytes_max), *left)
        before = position
        for part in shape(answer):
            records = [] if part[0] == "skip" else part
            got += records
            position = part[1] + 1 if part[0] == "skip" else records[-1] + 1
        assert position > before
    assert got == wanted


# --- slices --------------------------------------------------------------------------------------


def slices(walk, *batches):
    """Into how many pieces the work is cut."""
    return 1 + sum(1 for job in walk.steps(batches) if job is None)


@pytest.mark.parametrize("region", ["eu", "us"])
def test_S11_many_batches_of_one_record_are_many_slices(region):
    """One takes about ten microseconds, however few bytes it has."""
    stored = b"".join(batch(offset, [region]) for offset in range(1_000))
    assert slices(walk_of(), stored) >= 1_000 / 150


def test_S11_known_batches_are_cut_into_slices_too():
    known = MatchlessRanges()
    known.add(0, 1_000)
    stored = b"".join(batch(offset, ["us"]) for offset in range(1_000))
    assert slices(walk_of(matchless=known), stored) >= 1_000 / 150


def test_S37_S11_each_term_counts_where_the_work_is_cut():
    record = Record(b"v", headers=[("a", b"x" * 30_000)])
    stored = bytes(build_batch([record] * 20))
    once = slices(walk_of("a LIKE '%y0'"), stored)
    many = slices(walk_of(" OR ".join(f"a LIKE '%y{n}'" for n in range(60))), stored)
    assert many >= 20 > once
