from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire import compression, records
from tidemill.wire.batch import (
    CorruptBatch,
    assign_offsets,
    read_header,
    stamp_append_time,
    verify,
    write_checksum,
)
from tidemill.wire.produced_batch import BatchPolicy, validate_produced
from tidemill.wire.records import (
    Record,
    build_batch,
    build_pair_batch,
    iter_records,
    try_find_timestamp,
)

ANY_TIME = BatchPolicy(timestamp_after_max_ms=2**63 - 1)

maybe_bytes = st.none() | st.binary(max_size=100)
some_records = st.lists(
    st.builds(
        Record,
        maybe_bytes,
        maybe_bytes,
        headers=st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3),
        timestamp=st.integers(0, 2**62),
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture(params=FLAVOURS, scope="module")
def flavour(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "record_walk", load(request.param, "record_walk"))
        patch.setattr(records, "record_encode", load(request.param, "record_encode"))
        yield request.param


@settings(max_examples=40)
@given(content=some_records, codec=st.sampled_from(sorted(compression.CODEC_NAMES)))
def test_what_is_built_validates_and_reads_back(flavour, content, codec):
    data = build_batch(content, codec=codec)
    header = validate_produced(memoryview(data), ANY_TIME, 0)
    assign_offsets(data, 1000, 1)
    found = list(iter_records(data))
    assert header.max_timestamp == max(record.timestamp for record in content)
    assert [record.offset for record in found] == list(range(1000, 1000 + len(content)))
    for record in found:
        record.offset = -1
    assert found == content


def test_records_may_have_gaps_as_after_compaction(flavour):
    data = build_batch([Record(b"a", offset=12), Record(b"b", offset=40)], base_offset=10)
    header = read_header(data)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 40, 2)
    assert [record.offset for record in iter_records(data)] == [12, 40]


def test_records_out_of_order_cannot_be_built(flavour):
    with pytest.raises(ValueError, match="comes after"):
        build_batch([Record(b"a", offset=3), Record(b"b", offset=3)])


def test_an_empty_batch_cannot_be_built(flavour):
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


def test_a_control_batch_has_its_flags(flavour):
    data = build_batch([Record(b"", b"")], control=True, transactional=True, producer_id=1)
    header = read_header(data)
    assert header.is_control
    assert header.is_transactional
    verify(memoryview(data), header)


def test_more_records_than_one_chunk_are_iterated(flavour):
    data = build_batch([Record(b"%d" % i) for i in range(1000)])
    assert [record.value for record in iter_records(data)] == [b"%d" % i for i in range(1000)]


def test_header_keys_that_are_not_utf8_survive(flavour):
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    [found] = iter_records(build_batch([Record(b"v", headers=[(name, b"x")])]))
    assert found.headers == [(name, b"x")]


def test_a_cut_batch_is_corrupt(flavour):
    data = build_batch([Record(b"value")])
    with pytest.raises(CorruptBatch):
        list(iter_records(data[:-1]))


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_with_a_wrong_count_is_invalid(flavour, count):
    data = build_batch([Record(b"a"), Record(b"b")])
    data[57:61] = count.to_bytes(4, "big")
    with pytest.raises(KafkaError) as caught:
        list(iter_records(data))
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_T39_the_first_record_at_or_after_a_time_is_found(flavour, codec):
    data = build_batch([Record(b"v", timestamp=t) for t in (100, 300, 200)], codec=codec)
    assign_offsets(data, 50, 0)
    view = memoryview(data)
    header = read_header(view)
    assert try_find_timestamp(view, header, 0) == (50, 100)
    assert try_find_timestamp(view, header, 101) == (51, 300)
    assert try_find_timestamp(view, header, 301) is None


def test_T39_a_batch_with_append_time_answers_with_its_first_record(flavour):
    data = build_batch([Record(b"v", timestamp=t) for t in (1, 2)], base_offset=50)
    stamp_append_time(data, 1000)
    assert try_find_timestamp(memoryview(data), read_header(data), 900) == (50, 1000)


def test_T39_a_damaged_batch_is_invalid(flavour):
    data = build_batch([Record(b"v", timestamp=5)])
    data[61] = 0x7E
    write_checksum(data)
    with pytest.raises(KafkaError) as caught:
        try_find_timestamp(memoryview(data), read_header(data), 5)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_records_compare_by_content():
    assert Record(b"a", headers=[("h", None)]) == Record(b"a", headers=(("h", None),))
    assert Record(b"a") != Record(b"b")
    assert Record(b"a") != b"a"


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_of_pairs_is_what_build_batch_makes_of_them(count):
    pairs = [(b"key %d" % n, None if n == 1 else b"value") for n in range(count)]
    records = [Record(value, key=key, timestamp=7) for key, value in pairs]
    assert build_pair_batch(pairs, 7) == build_batch(records)
