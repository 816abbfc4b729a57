"""The handlers of the ROUTE listener: whom they ask, and what they do with each outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from uuid import UUID

import pytest

from tests.unit.server.one_broker import NODE_ID, OneBroker, Peer, value_of
from tidemill.client.network.errors import ConnectionLost
from tidemill.core.config.endpoint import Endpoint
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import ZERO_UUID
from tidemill.core.limits import (
    KIB,
    ROUTED_BYTES_MAX,
    ROUTED_FETCH_BYTES_MAX,
    ROUTED_PARTITIONS_MAX,
)
from tidemill.core.loop.deferred import Deferred
from tidemill.replication.refused_batches import RefusedTotal
from tidemill.server.handlers import HANDLERS
from tidemill.server.request.context import RequestContext
from tidemill.server.routing import routed_client
from tidemill.server.routing.producer_order import PARTITIONS_MAX, batches_of
from tidemill.server.routing.router import Router
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_cluster import DescribeClusterRequest
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.generated.heartbeat import HeartbeatRequest
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tidemill.wire.generated.metadata import MetadataRequest
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.wire.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidemill.wire.records import Record, build_batch

OTHER = 2
ROUTE = Endpoint("route.example", 9)


class Owner:
    """A connection to an owner; `answer` makes the outcome of each request."""

    def __init__(self, find):
        self.endpoint = find()
        self.is_closed = False

    def ask(self, request, response_type, *, version, timeout_s):
        ASKED.append((self.endpoint.host, request, response_type))
        future = asyncio.get_running_loop().create_future()
        outcome = ANSWERS.pop(0)
        if isinstance(outcome, asyncio.Future):
            return outcome
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        return future

    def close(self):
        self.is_closed = True
        CLOSED.append(self.endpoint.host)


ASKED, ANSWERS, CLOSED = [], [], []


@pytest.fixture
def broker(monkeypatch):
    """Broker 1 routes; broker 2 leads the second partition of `t`."""
    for some in (ASKED, ANSWERS, CLOSED):
        some.clear()
    monkeypatch.setattr(
        routed_client, "Upstream", lambda _net, _sup, _budget, find, client_id: Owner(find)
    )
    made = OneBroker()
    made.join_broker(OTHER)
    made.make_topic("t", -1, assignments={0: [NODE_ID], 1: [OTHER]})
    made.router = Router(made.services, advertised=ROUTE, connections_max=10)
    made.routed = {one.api_key: one for one in made.router.routed(HANDLERS)}
    made.peer = Peer()
    yield made
    made.close()


def call(broker, key, request, version, size_bytes=100):
    """The answer; None if the client's connection is closed."""
    context = RequestContext(broker.services, broker.peer, version, "test")
    context.size_bytes = size_bytes

    async def start():
        answer = broker.routed[key].handle(context, request)
        for _ in range(5):
            await asyncio.sleep(0)
        return answer

    answer = broker.run(start())
    if isinstance(answer, Coroutine):
        return broker.run(answer)
    return value_of(answer) if isinstance(answer, Deferred) else answer


def wanted(*indexes):
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes]
    return ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)]
    )


def offset(index, at):
    told = ListOffsetsPartitionResponse(partition_index=index, offset=at)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[told])])


def produced(*indexes):
    partitions = [PartitionProduceData(index=index, records=b"batch") for index in indexes]
    return TopicProduceData(name="t", partition_data=partitions)


def found(answer):
    (topic,) = answer.topics
    return [(one.partition_index, one.error_code, one.offset) for one in topic.partitions]


def test_F37_each_leader_is_asked_for_its_partitions_and_one_answer_leaves(broker):
    ANSWERS.extend([offset(0, 5), offset(1, 7)])
    answer = call(broker, ApiKey.LIST_OFFSETS, wanted(0, 1), 7)
    assert [host for host, _, _ in ASKED] == ["broker.example", "other.example"]
    assert found(answer) == [(0, 0, 5), (1, 0, 7)]


def test_F37_what_could_not_be_sent_is_refused_and_the_rest_is_answered(broker):
    ANSWERS.extend([offset(0, 5), KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)])
    answer = call(broker, ApiKey.LIST_OFFSETS, wanted(0, 1), 7)
    assert found(answer) == [(0, 0, 5), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_R14_an_unknown_outcome_closes_the_clients_connection(broker):
    ANSWERS.extend([offset(0, 5), ConnectionLost("gone")])
    assert call(broker, ApiKey.LIST_OFFSETS, wanted(0, 1), 7) is None


def test_F37_metadata_names_the_route_for_everything(broker):
    answer = call(broker, ApiKey.METADATA, MetadataRequest(topics=None), 12)
    assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [(NODE_ID, *ROUTE)]
    (topic,) = answer.topics
    assert [(one.leader_id, one.replica_nodes) for one in topic.partitions] == [
        (NODE_ID, [NODE_ID]),
        (NODE_ID, [NODE_ID]),
    ]
    described = call(broker, ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), 1)
    assert [one.broker_id for one in described.brokers] == [NODE_ID]


def test_F37_a_group_without_a_coordinator_is_refused(broker):
    with pytest.raises(KafkaError) as caught:
        call(broker, ApiKey.HEARTBEAT, HeartbeatRequest(group_id="g"), 4)
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_S40_a_request_that_finds_no_memory_is_refused_and_its_client_waits(broker):
    request = wanted(0)

    async def crowd():
        never = asyncio.get_running_loop().create_future()
        ANSWERS.extend([never, never])
        handle = broker.routed[ApiKey.LIST_OFFSETS].handle
        # The first is over the limit: one client may be, so that a large request gets through.
        first, second = (RequestContext(broker.services, Peer(), 7, "test") for _ in range(2))
        first.size_bytes, second.size_bytes = ROUTED_BYTES_MAX, 1
        answer = handle(first, request)
        with pytest.raises(KafkaError) as caught:
            handle(second, request)
        await broker.supervisor.stop()
        return answer, caught.value.code, second.throttle_ms

    answer, code, throttle_ms = broker.run(crowd())
    assert not answer.resolved
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert throttle_ms > 0


def test_S11_a_request_for_too_many_partitions_is_refused(broker):
    with pytest.raises(KafkaError) as caught:
        call(broker, ApiKey.LIST_OFFSETS, wanted(*range(ROUTED_PARTITIONS_MAX + 1)), 7)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert ASKED == []


def test_S31_a_fetch_of_a_replica_is_not_passed_on(broker):
    broker.peer.is_internal = False
    with pytest.raises(KafkaError) as caught:
        call(broker, ApiKey.FETCH, FetchRequest(replica_id=OTHER), 12)
    assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert ASKED == []


def test_T35_sessions_are_declined(broker):
    with pytest.raises(KafkaError) as caught:
        call(broker, ApiKey.FETCH, FetchRequest(session_id=3, session_epoch=1), 12)
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_connections_to_owners_end_with_the_clients_own(broker):
    ANSWERS.extend([offset(0, 5), offset(1, 7)])
    call(broker, ApiKey.LIST_OFFSETS, wanted(0, 1), 7)
    broker.router.end(broker.peer)
    assert sorted(CLOSED) == ["broker.example", "other.example"]
    broker.router.end(broker.peer)


def test_S40_a_client_over_the_limit_gets_no_second_request_through(broker):
    request = wanted(0)

    async def crowd():
        never = asyncio.get_running_loop().create_future()
        ANSWERS.extend([never, never])
        handle = broker.routed[ApiKey.LIST_OFFSETS].handle
        large, next_one = (RequestContext(broker.services, broker.peer, 7, "test") for _ in "12")
        large.size_bytes = next_one.size_bytes = ROUTED_BYTES_MAX
        handle(large, request)
        with pytest.raises(KafkaError):
            handle(next_one, request)
        await broker.supervisor.stop()

    broker.run(crowd())


def test_S40_small_requests_that_nobody_answers_are_bounded(broker):
    """With acks=0 no answer is owed, so no bound of outstanding answers holds."""
    request = ProduceRequest(acks=0, timeout_ms=1, topic_data=[produced(0)])

    async def crowd():
        never = asyncio.get_running_loop().create_future()
        handle = broker.routed[ApiKey.PRODUCE].handle
        for count in range(ROUTED_BYTES_MAX // (4 * KIB) + 1):
            ANSWERS.append(never)
            context = RequestContext(broker.services, broker.peer, 9, "test")
            context.size_bytes = 50
            if handle(context, request) is not None:  # its connection is closed
                await broker.supervisor.stop()
                return count
        await broker.supervisor.stop()
        return None

    assert broker.run(crowd()) is not None


def test_S40_fetches_count_while_they_wait(broker):
    partition = FetchPartition(partition=0, fetch_offset=0)
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[partition])])

    async def crowd():
        never = asyncio.get_running_loop().create_future()
        ANSWERS.extend([never, never])
        handle = broker.routed[ApiKey.FETCH].handle
        first, second = (RequestContext(broker.services, Peer(), 12, "test") for _ in "12")
        first.size_bytes, second.size_bytes = ROUTED_FETCH_BYTES_MAX, 1
        handle(first, request)
        with pytest.raises(KafkaError):
            handle(second, request)
        await broker.supervisor.stop()

    broker.run(crowd())


def test_R14_an_unknown_outcome_at_one_leader_makes_nobody_send_the_others_records_again(broker):
    done = PartitionProduceResponse(index=0, base_offset=5)
    ANSWERS.extend(
        [
            ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[done])]),
            ConnectionLost("gone"),
        ]
    )
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[produced(0, 1)])
    (topic,) = call(broker, ApiKey.PRODUCE, request, 9).responses
    told = [(one.index, one.error_code, one.base_offset) for one in topic.partition_responses]
    assert told == [(0, 0, 5), (1, ErrorCode.REQUEST_TIMED_OUT, -1)]


def test_R14_an_unknown_outcome_of_a_whole_produce_leaves_the_clients_connection_to_others(broker):
    """librdkafka sends a request for each partition: another leader may have taken the next."""
    ANSWERS.append(ConnectionLost("gone"))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[produced(1)])
    (topic,) = call(broker, ApiKey.PRODUCE, request, 9).responses
    (told,) = topic.partition_responses
    assert (told.index, told.error_code) == (1, ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize("count", [1, ROUTED_PARTITIONS_MAX + 1])
def test_T9_a_produce_that_wants_no_answer_gets_none_when_it_is_refused(broker, count):
    """An answer that nobody expects would be taken for that of the next request."""
    request = ProduceRequest(acks=0, timeout_ms=1, topic_data=[produced(*range(count))])
    broker.router._resources.memory.take(ROUTED_BYTES_MAX)
    broker.router._resources.memory.try_take(1, "a debtor")
    assert call(broker, ApiKey.PRODUCE, request, 9) is None
    assert ASKED == []


# --- the order of an idempotent producer ---------------------------------------------------------


def send(broker, sequence, *, index=1, producer_id=9, size_bytes=100):
    """A batch of a producer; the error code of its answer, or None while there is none."""
    batch = build_batch(
        [Record(b"value")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    topic = TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=index, records=batch)]
    )
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    context = RequestContext(broker.services, broker.peer, 9, "test")
    context.size_bytes = size_bytes

    async def start():
        answer = broker.routed[ApiKey.PRODUCE].handle(context, request)
        for _ in range(5):
            await asyncio.sleep(0)
        return answer

    try:
        answer = broker.run(start())
    except KafkaError as refusal:
        return refusal.code
    if not answer.resolved:
        return None
    (topic,) = value_of(answer).responses
    return topic.partition_responses[0].error_code


def answered(code=0, index=1):
    entry = PartitionProduceResponse(index=index, error_code=int(code))
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[entry])])


def asked_hosts():
    return [host for host, _, _ in ASKED]


def move_here(broker):
    """Broker 1 leads all partitions from now on."""
    broker.router._owners.leader = lambda *_partition: NODE_ID


NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_I1_no_batch_overtakes_one_that_its_former_leader_has_refused(broker):
    ANSWERS.extend([answered(NOT_LEADER), answered(), answered()])
    assert send(broker, 0) == NOT_LEADER
    move_here(broker)
    assert send(broker, 1) == NOT_LEADER
    assert asked_hosts() == ["other.example"]
    assert send(broker, 0) == 0
    assert send(broker, 1) == 0
    assert asked_hosts() == ["other.example", "broker.example", "broker.example"]


def test_I1_a_batch_goes_where_those_before_it_are_that_are_not_answered(broker):
    async def later():
        return asyncio.get_running_loop().create_future()

    ANSWERS.extend([broker.run(later()), answered(NOT_LEADER)])
    assert send(broker, 0) is None
    move_here(broker)
    assert send(broker, 1) == NOT_LEADER
    assert asked_hosts() == ["other.example", "other.example"]


@pytest.mark.parametrize(
    "outcome", [KafkaError(ErrorCode.BROKER_NOT_AVAILABLE), ConnectionLost("gone")]
)
def test_I1_no_batch_overtakes_one_that_was_not_sent_or_got_no_answer(broker, outcome):
    ANSWERS.extend([outcome, answered()])
    assert send(broker, 0)
    assert send(broker, 1) == NOT_LEADER
    assert send(broker, 0) == 0


def test_I1_a_small_batch_does_not_overtake_one_that_found_no_memory(broker):
    memory = broker.router._resources.memory
    memory.take(ROUTED_BYTES_MAX)
    memory.try_take(1, "a debtor")
    assert send(broker, 0, size_bytes=1000) == NOT_LEADER
    memory.give(ROUTED_BYTES_MAX)
    assert send(broker, 1) == NOT_LEADER
    assert ASKED == []


def test_I1_only_the_partition_of_a_refused_batch_waits_for_it(broker):
    ANSWERS.extend([answered(NOT_LEADER), answered(index=0)])
    assert send(broker, 0) == NOT_LEADER
    assert send(broker, 1, index=0) == 0


def test_I36_what_a_client_makes_the_router_remember_is_bounded(broker):
    for index in range(PARTITIONS_MAX + 1):
        ANSWERS.append(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
        assert send(broker, 0, index=index) == NOT_LEADER
    assert len(broker.router._clients[broker.peer].order._refused) == PARTITIONS_MAX


def test_I36_clients_together_do_not_make_it_remember_more(broker, monkeypatch):
    total = RefusedTotal(3)
    monkeypatch.setattr(broker.router._resources, "refused_total", total)
    peers = [Peer() for _ in range(3)]
    for broker.peer in peers:
        for index in (0, 1):
            ANSWERS.append(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE))
            assert send(broker, 0, index=index) == NOT_LEADER
    orders = [broker.router._clients[peer].order for peer in peers]
    assert [len(order) for order in orders] == [0, 0, 2]
    assert len(total) == 2


def test_I36_of_a_client_that_has_gone_nothing_is_remembered(broker):
    async def later():
        return asyncio.get_running_loop().create_future()

    late = broker.run(later())
    ANSWERS.extend([answered(NOT_LEADER, index=0), late])
    assert send(broker, 0, index=0) == NOT_LEADER
    assert send(broker, 0) is None
    total = broker.router._resources.refused_total
    assert len(total) == 1
    broker.router.end(broker.peer)

    async def answer_late():
        late.set_result(answered(NOT_LEADER))
        await asyncio.sleep(0)

    broker.run(answer_late())
    assert len(total) == 0


def test_S8_a_name_that_no_topic_can_have_is_not_remembered():
    batch = build_batch([Record(b"v")], producer_id=9, producer_epoch=0, base_sequence=0)
    by_name, by_id, illegal = (
        TopicProduceData(
            name=name,
            topic_id=UUID(int=topic_id),
            partition_data=[PartitionProduceData(index=0, records=batch)],
        )
        for name, topic_id in (("t", 0), ("", 1), ("t" * 30_000, 0))
    )
    found = batches_of(ProduceRequest(topic_data=[by_name, by_id, illegal]))
    assert list(found) == [("t", ZERO_UUID, 0), ("", UUID(int=1), 0)]


def test_nothing_is_kept_of_batches_that_were_answered(broker):
    ANSWERS.extend([answered(NOT_LEADER), answered(), answered()])
    codes = [send(broker, sequence) for sequence in (0, 0, 1)]
    assert codes == [NOT_LEADER, 0, 0]
    order = broker.router._clients[broker.peer].order
    assert not order._under_way
    assert not order._refused


# --- transactions that hang ----------------------------------------------------------------------


def abort(*indexes):
    topics = [WritableTxnMarkerTopic(name="t", partition_indexes=list(indexes))]
    marker = WritableTxnMarker(producer_id=7, producer_epoch=0, topics=topics)
    return WriteTxnMarkersRequest(markers=[marker])


def test_the_leader_of_a_partition_aborts_what_hangs_there(broker):
    done = WriteTxnMarkersResponse()
    ANSWERS.append(done)
    assert call(broker, ApiKey.WRITE_TXN_MARKERS, abort(1), 1) is done
    assert [host for host, _, _ in ASKED] == [broker.image.brokers[OTHER].host]


def test_more_than_one_transaction_at_a_time_is_refused_here(broker, monkeypatch):
    monkeypatch.setattr(Peer, "is_internal", False)
    with pytest.raises(KafkaError) as refused:
        call(broker, ApiKey.WRITE_TXN_MARKERS, abort(0, 1), 1)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert ASKED == []
