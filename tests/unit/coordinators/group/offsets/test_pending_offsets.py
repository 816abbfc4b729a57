"""Offsets of open transactions: hidden, then committed or dropped, in the order of the log."""

from __future__ import annotations

import pytest

from tests.support.shard_desk import GROUP, RETENTION_MS, ShardDesk, refusal, topic_image
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.core.errors import ErrorCode
from tidemill.wire.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

ANA, BEN = ProducerName(7, 0), ProducerName(8, 3)


class TransactionalDesk(ShardDesk):
    """Keeps markers and transactional records in its log too."""

    def take(self, result):
        if result.producer is None:
            self.events += [("plain", record) for record in result.records]
            return super().take(result)
        for record in result.records:
            self.events.append(("pending", (record, result.producer)))
            self.shard.replay_pending(*record, result.producer)
        return result.response

    def __init__(self, *topics, **options):
        self.events = []
        super().__init__(*topics, **options)

    def commit_pending(self, producer, offset, *, index=0, **member):
        verification = self.shard.offsets.begin_verification(producer).response
        return self.commit_verified(producer, offset, verification, index=index, **member)

    def commit_verified(self, producer, offset, verification, *, index=0, **member):
        wanted = TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id="pay",
            group_id=GROUP,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[wanted])],
            **member,
        )
        return self.take(
            self.shard.offsets.commit_in_transaction(request, verification, now=self.now)
        )

    def end(self, producer, *, is_commit=True):
        self.events.append(("marker", (producer, is_commit)))
        self.shard.offsets.pending.void_verifications(producer.producer_id)
        self.shard.replay_marker(producer, is_commit=is_commit)

    def loaded_again(self):
        """Another broker loads what this one wrote."""
        other = TransactionalDesk()
        for kind, content in self.events:
            if kind == "plain":
                other.shard.replay(*content)
            elif kind == "pending":
                other.shard.replay_pending(*content[0], content[1])
            else:
                other.shard.replay_marker(content[0], is_commit=content[1])
        other.shard.loaded(self.now)
        other.now = self.now
        return other


@pytest.fixture
def desk():
    return TransactionalDesk()


def both(desk):
    """What this broker shows, and one that loads the log."""
    return desk.committed(), desk.loaded_again().committed()


@pytest.mark.parametrize(("is_commit", "shown"), [(True, 9), (False, 5)])
def test_T55_the_marker_decides_also_on_a_broker_that_loads_the_log(desk, is_commit, shown):
    desk.commit(5)
    desk.commit_pending(ANA, 9)
    assert both(desk) == (5, 5)
    desk.end(ANA, is_commit=is_commit)
    assert both(desk) == (shown, shown)


def test_the_last_commit_of_a_transaction_counts(desk):
    desk.commit_pending(ANA, 9)
    desk.commit_pending(ANA, 11)
    desk.end(ANA)
    assert both(desk) == (11, 11)


def test_I22_a_marker_of_an_older_epoch_ends_nothing(desk):
    desk.commit_pending(BEN, 9)
    desk.end(ProducerName(BEN.producer_id, BEN.epoch - 1))
    assert both(desk) == (-1, -1)


def test_a_marker_with_the_next_epoch_ends_the_transaction(desk):
    desk.commit_pending(BEN, 9)
    desk.end(ProducerName(BEN.producer_id, BEN.epoch + 1))
    assert both(desk) == (9, 9)


def test_a_marker_that_comes_twice_changes_nothing(desk):
    desk.commit_pending(ANA, 9)
    desk.end(ANA)
    desk.commit(12)
    desk.end(ANA)
    desk.end(ANA, is_commit=False)
    assert both(desk) == (12, 12)


def test_a_later_plain_commit_wins_over_the_transaction_before_it(desk):
    desk.commit_pending(ANA, 9)
    desk.commit(12)
    desk.end(ANA)
    assert both(desk) == (12, 12)


@pytest.mark.parametrize("first", [ANA, BEN])
def test_the_order_of_the_records_decides_and_not_that_of_the_markers(desk, first):
    desk.commit_pending(ANA, 9)
    desk.commit_pending(BEN, 12)
    desk.end(first)
    desk.end(BEN if first is ANA else ANA)
    assert both(desk) == (12, 12)


def test_an_aborted_transaction_does_not_take_the_offset_of_another(desk):
    desk.commit_pending(ANA, 9)
    desk.commit_pending(BEN, 12)
    desk.end(BEN, is_commit=False)
    desk.end(ANA)
    assert both(desk) == (9, 9)


def test_a_commit_that_was_verified_before_the_marker_came_must_be_verified_again(desk):
    verification = desk.shard.offsets.begin_verification(ANA).response
    desk.end(ANA)
    code = refusal(desk.commit_verified, ANA, 9, verification)
    assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert both(desk) == (-1, -1)


def test_a_verification_of_another_shard_does_not_count(desk):
    verification = TransactionalDesk().shard.offsets.begin_verification(ANA).response
    code = refusal(desk.commit_verified, ANA, 9, verification)
    assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_producer_that_has_offsets_pending_need_not_be_verified_again(desk):
    desk.commit_pending(ANA, 9)
    assert desk.shard.offsets.begin_verification(ANA).response is None
    assert desk.shard.offsets.begin_verification(ANA._replace(epoch=1)).response is not None


def test_verifications_leave_nothing_behind(desk):
    verification = desk.shard.offsets.begin_verification(ANA).response
    desk.shard.offsets.pending.end_verification(verification)
    assert desk.shard.offsets.pending._verifications == {}


def test_a_pending_offset_keeps_its_group(desk):
    desk.commit_pending(ANA, 9)
    desk.pass_time(2 * RETENTION_MS)
    assert desk.shard.group_count == 1
    desk.end(ANA)
    assert desk.committed() == 9


def test_an_offset_with_another_one_pending_does_not_expire(desk):
    desk.commit(5)
    desk.commit_pending(ANA, 9)
    desk.pass_time(2 * RETENTION_MS)
    assert desk.committed() == 5


def test_a_group_of_an_aborted_transaction_is_forgotten_in_time(desk):
    desk.commit_pending(ANA, 9)
    desk.end(ANA, is_commit=False)
    desk.pass_time(2 * RETENTION_MS)
    assert desk.shard.group_count == 0


def test_a_deleted_offset_does_not_come_back_with_the_marker(desk):
    desk.commit_pending(ANA, 9)
    wanted = OffsetDeleteRequestTopic(
        name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
    )
    request = OffsetDeleteRequest(group_id=GROUP, topics=[wanted])
    desk.take(desk.shard.offsets.delete(request))
    desk.end(ANA)
    assert both(desk) == (-1, -1)


def test_a_deleted_group_does_not_come_back_with_the_marker(desk):
    desk.commit(5, index=1)
    desk.commit_pending(ANA, 9)
    desk.take(desk.shard.delete_group(GROUP))
    desk.end(ANA)
    assert desk.committed() == -1
    assert desk.loaded_again().shard.offsets.count == 0


def test_an_unknown_partition_is_refused_and_the_transaction_has_nothing_here(desk):
    answer = desk.commit_pending(ANA, 9, index=7)
    code = answer.topics[0].partitions[0].error_code
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert desk.events == []


def test_offsets_of_a_deleted_topic_stay_hidden_after_the_marker():
    desk = TransactionalDesk(topic_image("t", 1))
    desk.commit_pending(ANA, 9)
    desk.change_topics(topic_image("t", 2))
    desk.end(ANA)
    assert desk.committed() == -1
