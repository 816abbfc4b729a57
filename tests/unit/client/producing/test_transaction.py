from __future__ import annotations

import pytest

from tests.support.fake_cluster import HANG_UP, FakeCluster
from tests.support.fake_transactions import PRODUCER_ID, FakeTransactions
from tests.unit.client.producing.test_batch_producer import batch, numbered, react, refusing
from tests.unit.client.virtual_time import run_virtually
from tidemill.client.admin.group_offsets import OffsetAndMetadata
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import BrokerUnreachable
from tidemill.client.producing.batch_producer import BatchProducer, BatchRefused
from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.client.producing.producer_lookup import written_by
from tidemill.client.producing.transaction import TransactionClient
from tidemill.client.producing.transaction_errors import (
    OutcomeUnknown,
    ProducerFenced,
    TransactionMustAbort,
    TransactionRefused,
)
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.batch import read_header
from tidemill.wire.generated.end_txn import EndTxnResponse
from tidemill.wire.generated.init_producer_id import InitProducerIdResponse

PLACE = TopicPartition("t", 0)


def client(cluster: FakeCluster, **options) -> TransactionClient:
    connections = ClusterClient(cluster.net, cluster.bootstrap)
    return TransactionClient(connections, "sink", **options)


def once(cluster: FakeCluster, key: ApiKey, *reactions: object) -> None:
    """The first requests of an API get `reactions`, each after the real handler has acted."""
    left = list(reactions)
    for broker in cluster.brokers.values():
        real = broker.handlers[key]

        def act(request, version, real=real):
            answer = real(request, version)
            return left.pop(0) if left else answer

        broker.handlers[key] = act


def cluster_with_topic(brokers: int = 1) -> tuple[FakeCluster, FakeTransactions]:
    cluster = FakeCluster(brokers)
    cluster.add_topic("t", 2)
    return cluster, FakeTransactions(cluster)


def test_records_and_offsets_of_a_transaction_are_committed_together():
    async def scenario():
        cluster, transactions = cluster_with_topic()
        connections = ClusterClient(cluster.net, cluster.bootstrap)
        steps = TransactionClient(connections, "sink")
        identity = await steps.open()
        producer = BatchProducer(
            connections, identity=identity, enlist=lambda places: steps.enlist(identity, places)
        )
        await producer.send(numbered(3))
        await producer.flush()
        enlisted = set(transactions.partitions)
        await steps.commit_offsets(identity, "group", {PLACE: OffsetAndMetadata(8, "query")})
        before = dict(transactions.offsets)
        await steps.end(identity, commit=True)
        return cluster, transactions, identity, enlisted, before

    cluster, transactions, identity, enlisted, before = run_virtually(scenario())

    headers = [read_header(stored) for stored in cluster.partition("t", 0).batches]
    assert identity == ProducerIdentity(PRODUCER_ID, 0, "sink")
    assert enlisted == {("t", 0)}
    assert all(header.is_transactional for header in headers)
    assert {header.producer_id for header in headers} == {PRODUCER_ID}
    assert {request.transactional_id for request in cluster.asked(ApiKey.PRODUCE)} == {"sink"}
    assert (before, transactions.offsets) == ({}, {("t", 0): (8, "query")})
    assert transactions.ends == [(0, True)]


def test_T53_a_partition_is_enlisted_once_and_before_its_first_batch():
    async def scenario():
        cluster, _ = cluster_with_topic()
        connections = ClusterClient(cluster.net, cluster.bootstrap)
        steps = TransactionClient(connections, "sink")
        identity = await steps.open()
        producer = BatchProducer(
            connections, identity=identity, enlist=lambda places: steps.enlist(identity, places)
        )
        for number in range(3):
            await producer.send([batch(b"%d" % number)])
            await producer.flush()
        await producer.send([batch(b"other", partition=1)])
        await producer.flush()
        wanted = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE)
        return [key for key, _ in cluster.requests if key in wanted]

    add, produce = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE
    assert run_virtually(scenario()) == [add, produce, produce, produce, add, produce]


def test_an_older_producer_is_fenced_at_every_step():
    async def scenario():
        cluster, transactions = cluster_with_topic()
        steps = client(cluster)
        old = await steps.open()
        await steps.open()
        for step in (
            steps.enlist(old, [PLACE]),
            steps.commit_offsets(old, "group", {PLACE: OffsetAndMetadata(1, "")}),
            steps.end(old, commit=True),
            steps.end(old, commit=False),
        ):
            with pytest.raises(ProducerFenced):
                await step
        return transactions.ends

    assert run_virtually(scenario()) == []


def test_the_coordinator_is_found_again_when_it_has_moved():
    async def scenario():
        cluster, transactions = cluster_with_topic(brokers=2)
        steps = client(cluster)
        identity = await steps.open()
        transactions.coordinator = 2
        await steps.enlist(identity, [PLACE])
        await steps.end(identity, commit=True)
        return transactions.ends

    assert run_virtually(scenario()) == [(0, True)]


def test_opening_waits_until_the_markers_of_the_last_transaction_are_written():
    async def scenario():
        cluster, _ = cluster_with_topic()
        busy = InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        once(cluster, ApiKey.INIT_PRODUCER_ID, busy, busy)
        return await client(cluster).open()

    assert run_virtually(scenario()).epoch == 2


def test_T54_an_end_without_an_answer_is_repeated_under_the_same_epoch():
    async def scenario():
        cluster, transactions = cluster_with_topic()
        once(cluster, ApiKey.END_TXN, HANG_UP, HANG_UP)
        steps = client(cluster)
        identity = await steps.open()
        await steps.end(identity, commit=True)
        asked = cluster.asked(ApiKey.END_TXN)
        return transactions.ends, [request.producer_epoch for request in asked]

    assert run_virtually(scenario()) == ([(0, True)], [0, 0, 0])


def test_an_end_that_is_never_answered_has_an_unknown_outcome():
    async def scenario():
        cluster, transactions = cluster_with_topic()
        steps = client(cluster, patience_s=5.0)
        identity = await steps.open()
        once(cluster, ApiKey.END_TXN, *[HANG_UP] * 100)
        with pytest.raises(OutcomeUnknown, match="commit the transaction"):
            await steps.end(identity, commit=True)
        return transactions.ends

    assert run_virtually(scenario()) == [(0, True)]


def test_an_end_that_is_fenced_after_a_lost_answer_has_an_unknown_outcome():
    async def scenario():
        cluster, _ = cluster_with_topic()
        fenced = EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)
        once(cluster, ApiKey.END_TXN, HANG_UP, fenced)
        steps = client(cluster)
        identity = await steps.open()
        with pytest.raises(OutcomeUnknown):
            await steps.end(identity, commit=True)

    run_virtually(scenario())


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ],
)
@pytest.mark.parametrize("last", [ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS])
def test_an_end_that_a_coordinator_may_have_written_has_an_unknown_outcome(code, last):
    """Found by the simulation: the decision was in the log when the coordinator gave up."""

    async def scenario():
        cluster, _ = cluster_with_topic()
        steps = client(cluster, patience_s=5.0)
        identity = await steps.open()
        refusals = [EndTxnResponse(error_code=one) for one in (code, *[last] * 100)]
        once(cluster, ApiKey.END_TXN, *refusals)
        with pytest.raises(OutcomeUnknown):
            await steps.end(identity, commit=True)

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionMustAbort),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProducerFenced),
        (ErrorCode.INVALID_TXN_STATE, TransactionRefused),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionRefused),
    ],
)
def test_a_refused_end_says_what_the_producer_may_do_next(code, kind):
    async def scenario():
        cluster, _ = cluster_with_topic()
        once(cluster, ApiKey.END_TXN, EndTxnResponse(error_code=code))
        steps = client(cluster)
        identity = await steps.open()
        with pytest.raises(kind, match=code.name):
            await steps.end(identity, commit=True)

    run_virtually(scenario())


def test_a_coordinator_that_nobody_reaches_is_given_up_after_a_while():
    async def scenario():
        cluster, _ = cluster_with_topic()
        steps = client(cluster, patience_s=5.0)
        identity = await steps.open()
        cluster.net.servers.clear()
        for broker in cluster.brokers.values():
            for transport in broker.transports:
                transport.break_off()
        with pytest.raises((BrokerUnreachable, OutcomeUnknown)):
            await steps.end(identity, commit=True)

    run_virtually(scenario())


def test_a_duplicate_is_fatal_unless_this_process_has_sent_the_batch_before():
    async def scenario(reactions):
        cluster, _ = cluster_with_topic()
        steps = client(cluster)
        identity = await steps.open()
        connections = ClusterClient(cluster.net, cluster.bootstrap)
        producer = BatchProducer(
            connections, identity=identity, enlist=lambda places: steps.enlist(identity, places)
        )
        react(cluster, reactions)
        await producer.send([batch(b"x")])
        await producer.flush()

    duplicate = refusing(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    run_virtually(scenario({1: HANG_UP, 2: duplicate}))
    with pytest.raises(BatchRefused, match="DUPLICATE_SEQUENCE_NUMBER"):
        run_virtually(scenario({1: duplicate}))


def test_partitions_that_hold_batches_of_an_epoch_are_known():
    async def scenario():
        cluster, _ = cluster_with_topic()
        connections = ClusterClient(cluster.net, cluster.bootstrap)
        steps = TransactionClient(connections, "sink")
        identity = await steps.open()
        producer = BatchProducer(connections, identity=identity)
        await producer.send([batch(b"x", partition=1)])
        await producer.flush()
        places = [PLACE, TopicPartition("t", 1)]
        later = await steps.open()
        return [await written_by(connections, who, places) for who in (identity, later)]

    assert run_virtually(scenario()) == [{TopicPartition("t", 1)}, set()]
