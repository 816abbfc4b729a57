"""Legal requests that are made costly (S11, S38, S39, S40), on live sockets."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest
import zstandard

from tests.abuse.requests import (
    CREATE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
    all_topics,
    batch,
    code_of,
    create,
    fetch,
    metadata,
    partition_of,
    produce,
)
from tests.abuse.stranger import Stranger, wait_until
from tests.abuse.test_records import with_payload
from tests.abuse.victim import MIB, RESPONSE_MEMORY_BYTES
from tidemill.core.errors import ErrorCode
from tidemill.server.limits.quotas import AUTO_CREATE_BURST, AUTO_CREATE_TOPICS_PER_S
from tidemill.testing import broker
from tidemill.wire.compression import ZSTD
from tidemill.wire.generated.api_versions import ApiVersionsRequest
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from tidemill.wire.generated.init_producer_id import InitProducerIdRequest
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

HUGE = 2**31 - 1


# --- S11: costly requests ------------------------------------------------------------------------

WIDE_PARTITIONS = 300


@pytest.fixture(scope="module")
def wide(one_victim):
    """A topic with many partitions."""
    with one_victim.connect() as stranger:
        (made,) = stranger.call(create("wide", WIDE_PARTITIONS), CREATE_TOPICS).topics
        assert made.error_code == 0
    return "wide"


def _list_offsets(topic):
    wanted = [
        ListOffsetsPartition(partition_index=index % WIDE_PARTITIONS, timestamp=-1)
        for index in range(10_000)
    ]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=wanted)]
    )


def _describe_configs(topic):
    wanted = [DescribeConfigsResource(resource_type=2, resource_name=topic) for _ in range(300)]
    return DescribeConfigsRequest(resources=wanted)


COSTLY = {
    "metadata_of_everything": (lambda _: all_topics(), METADATA),
    "offsets_of_10000_partitions": (_list_offsets, 6),
    "configs_of_300_topics": (_describe_configs, 4),
    "fetch_of_10000_partitions": (
        lambda topic: fetch(topic, partitions=[n % WIDE_PARTITIONS for n in range(10_000)]),
        FETCH,
    ),
}


def _keep_asking(stranger, frame, stop):
    """Keep three requests in flight until `stop` is set."""
    try:
        stranger.send(frame * 3)
        while not stop.is_set():
            stranger.read_frame()
            stranger.send(frame)
    except OSError:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", COSTLY)
def test_S11_costly_requests_in_a_loop_do_not_keep_others_waiting(victim, wide, name):
    make, version = COSTLY[name]
    stop = threading.Event()
    with ExitStack() as stack:
        for _ in range(4):
            stranger = stack.enter_context(victim.connect())
            frame = stranger.frame(make(wide), version)
            asking = threading.Thread(target=_keep_asking, args=(stranger, frame, stop))
            asking.start()
            stack.callback(asking.join)
        stack.callback(stop.set)
        for _ in range(10):
            victim.check_canary()


def _bombs(topic, *, indexes):
    """One small request whose batches each decompress to almost the limit."""
    zeros = zstandard.ZstdCompressor().compress(bytes(31 * MIB))
    bomb = with_payload(ZSTD, zeros)
    data = [PartitionProduceData(index=index, records=bomb) for index in indexes]
    return ProduceRequest(
        acks=1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )


def _codes(produced):
    return [one.error_code for one in produced.responses[0].partition_responses]


@pytest.mark.slow
def test_S18_others_are_served_while_a_request_brings_many_bombs(victim, wide):
    request = _bombs(wide, indexes=range(20))
    before = victim.memory_bytes()
    with ExitStack() as stack:
        strangers = [stack.enter_context(victim.connect()) for _ in range(5)]
        for stranger in strangers:
            stranger.send(stranger.frame(request, PRODUCE))
        for _ in range(5):
            victim.check_canary()
        assert victim.peak_memory_bytes() - before < 110 * MIB  # one bomb at a time
        for stranger in strangers:
            stranger.socket.settimeout(60)
            assert set(_codes(stranger.answer(ProduceRequest, PRODUCE))) == {
                ErrorCode.INVALID_RECORD
            }


def test_S18_bombs_for_one_partition_count_once(victim, wide):
    with victim.connect() as stranger:
        codes = _codes(stranger.call(_bombs(wide, indexes=[0] * 100), PRODUCE))
    assert codes == [ErrorCode.INVALID_RECORD] + [ErrorCode.INVALID_REQUEST] * 99


def test_S11_others_are_served_while_a_request_names_very_many_partitions(victim, wide):
    data = [PartitionProduceData(index=index, records=batch(b"x")) for index in range(20_000)]
    request = ProduceRequest(
        acks=1, timeout_ms=5000, topic_data=[TopicProduceData(name=wide, partition_data=data)]
    )
    with victim.connect() as stranger:
        stranger.send(stranger.frame(request, PRODUCE))
        victim.check_canary()
        codes = _codes(stranger.answer(ProduceRequest, PRODUCE))
    assert codes[:WIDE_PARTITIONS] == [0] * WIDE_PARTITIONS
    assert set(codes[WIDE_PARTITIONS:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


# --- S38: maps -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_S38_fetch_sessions_are_limited_and_more_are_declined(victim):
    opening = fetch("canary")
    opening.session_epoch = 0
    with victim.connect() as stranger:
        ids = [stranger.call(opening, FETCH).session_id for _ in range(1_500)]
    assert len({one for one in ids if one}) == 1_000
    assert set(ids[1_000:]) == {0}


@pytest.mark.slow
def test_S38_many_client_ids_leave_nothing_behind(victim):
    before = victim.metrics().keys()
    with victim.connect() as stranger:
        for number in range(3_000):
            stranger.call(ApiVersionsRequest(), 0, client_id=f"client {number}")
    assert victim.metrics().keys() - before <= {
        name for name in victim.metrics() if 'api="ApiVersions"' in name
    }


def test_S38_thousands_of_producer_ids_are_handed_out_and_not_remembered(victim):
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with victim.connect() as stranger:
        ids = [stranger.call(request, 2).producer_id for _ in range(1_200)]
    assert len(set(ids)) == 1_200


# --- S39: topics ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_S39_auto_creation_is_a_burst_and_then_ten_topics_a_second():
    with broker(num_partitions=1) as running, Stranger(running.bootstrap) as stranger:
        started = time.monotonic()
        for wave in range(3):
            stranger.call(metadata(*(f"t-{wave}-{n}" for n in range(200))), METADATA)
        elapsed_s = time.monotonic() - started
        made = len(stranger.call(all_topics(), METADATA).topics)
    assert made >= AUTO_CREATE_BURST
    assert made <= AUTO_CREATE_BURST + AUTO_CREATE_TOPICS_PER_S * elapsed_s + 1


def test_S39_partitions_beyond_the_limit_are_refused_and_none_is_created():
    with broker(partitions_per_broker_max=20) as running, Stranger(running.bootstrap) as stranger:
        (large,) = stranger.call(create("large", 100_000), CREATE_TOPICS).topics
        assert large.error_code != 0
        (some,) = stranger.call(create("some", 15), CREATE_TOPICS).topics
        assert some.error_code == 0
        (more,) = stranger.call(create("more", 6), CREATE_TOPICS).topics
        assert more.error_code == ErrorCode.POLICY_VIOLATION
        topics = stranger.call(all_topics(), METADATA).topics
        assert [(one.name, len(one.partitions)) for one in topics] == [("some", 15)]


# --- S40: fetches --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fat(one_victim):
    """A topic with one record that every answer copies instead of mapping it."""
    with one_victim.connect() as stranger:
        stranger.call(create("fat"), CREATE_TOPICS)
        assert code_of(stranger.call(produce("fat", batch(b"v" * 31_000)), PRODUCE)) == 0
    return "fat"


def _greedy(topic, **options):
    return fetch(topic, partitions=[0] * 1000, max_bytes=HUGE, **options)


@pytest.mark.slow
def test_S40_unread_answers_are_bounded_and_small_fetches_are_served(victim, fat):
    before = victim.memory_bytes()
    with ExitStack() as stack:
        for _ in range(40):
            stranger = stack.enter_context(victim.connect())
            stranger.try_send(stranger.frame(_greedy(fat), FETCH) * 2)
        assert victim.peak_memory_bytes() - before < RESPONSE_MEMORY_BYTES + 40 * MIB
        assert victim.gauges()["tidemill_response_memory_bytes"] < RESPONSE_MEMORY_BYTES + 9 * MIB
        victim.check_canary()


@pytest.mark.slow
def test_S40_a_fetch_that_found_no_memory_is_answered_when_memory_is_given_back(victim, fat):
    with victim.connect() as honest, ExitStack() as stack:
        for _ in range(10):
            stranger = stack.enter_context(victim.connect())
            stranger.try_send(stranger.frame(_greedy(fat), FETCH) * 2)
        used = "tidemill_response_memory_bytes"
        wait_until(lambda: victim.gauges()[used] >= RESPONSE_MEMORY_BYTES, "the memory is used up")
        honest.send(honest.frame(fetch(fat, max_wait_ms=30_000), FETCH))
        assert not honest.is_closed(within_s=0.05)
        stack.close()
        answer = honest.answer(type(fetch("")), FETCH)
        assert len(partition_of(answer).records) > 31_000


def test_S40_fetches_that_can_never_be_satisfied_end_with_their_connections(victim):
    end = victim.end_offset("canary")
    with ExitStack() as stack:
        for _ in range(50):
            stranger = stack.enter_context(victim.connect())
            waiting = fetch("canary", offset=end, max_wait_ms=HUGE, min_bytes=HUGE)
            stranger.send(stranger.frame(waiting, FETCH) * 4)
        parked = "tidemill_parked_fetches"
        wait_until(lambda: victim.gauges()[parked] == 200, "they are parked")
        victim.check_canary()
    wait_until(lambda: victim.gauges()[parked] == 0, "they are forgotten", within_s=1.0)


def test_S40_an_answer_is_no_longer_than_the_broker_allows(victim, fat):
    with victim.connect() as stranger:
        answer = stranger.call(_greedy(fat), FETCH)
        size = sum(len(one.records) for one in answer.responses[0].partitions)
        assert 7 * MIB < size <= 8 * MIB


# --- I36: idle connections -----------------------------------------------------------------------

IDLE_BYTES_MAX = 12 * 1024


@pytest.mark.slow
def test_I36_an_idle_connection_costs_little(victim):
    before = victim.memory_bytes()
    with ExitStack() as stack:
        for _ in range(1_000):
            stack.enter_context(victim.connect())
        wait_until(lambda: victim.gauges()["tidemill_connections"] == 1_000, "they are there")
        assert victim.memory_bytes() - before < 1_000 * IDLE_BYTES_MAX
