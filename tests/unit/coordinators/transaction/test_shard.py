"""What the stories in tests/scenario do not tell: bounds, bad input, and the shape of records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.transaction_desk import ID, TransactionDesk, at
from tidemill.coordinators.runtime.shard import CoordinatorRecord, ProducerName, Result
from tidemill.coordinators.transaction import shard as shard_module
from tidemill.coordinators.transaction.decisions import Ending
from tidemill.coordinators.transaction.records import (
    transaction_record,
    transaction_tombstone,
    try_read_id,
    try_read_transaction,
)
from tidemill.coordinators.transaction.shard import TransactionLimit, TransactionShard
from tidemill.coordinators.transaction.states import TransactionStatus
from tidemill.coordinators.transaction.transaction import (
    EPOCH_MAX,
    LAST_GIVEN_EPOCH,
    Transaction,
)
from tidemill.core.config.transaction_config import TransactionConfig
from tidemill.core.errors import ErrorCode, KafkaError, ProtocolViolation
from tidemill.core.limits import TRANSACTION_PARTITIONS_MAX, TRANSACTION_RECORD_BYTES_MAX

MANY_IDS = 100_000


@pytest.fixture
def desk():
    return TransactionDesk()


def refusal(act):
    with pytest.raises(KafkaError) as refused:
        act()
    return refused.value.code


def test_counts_follow_the_log(desk):
    desk.init()
    desk.init(transactional_id="other")
    assert desk.shard.count_states() == {"Empty": 2}
    desk.shard.replay(*transaction_tombstone("other"))
    desk.shard.replay(*transaction_tombstone("never there"))
    assert desk.shard.count_states() == {"Empty": 1}
    desk.shard.resign()
    assert desk.shard.count_states() == {}


def test_a_record_gives_back_the_transaction_that_it_was_made_of():
    made = Transaction(
        transactional_id="pay",
        producer_id=7,
        epoch=3,
        timeout_ms=1000,
        status=TransactionStatus.PREPARE_COMMIT,
        partitions=frozenset({at("a-0"), at("a-3"), at("b-1")}),
        start_ms=5,
        update_ms=6,
        previous_producer_id=4,
        next_producer_id=9,
        version=2,
    )
    key, value = transaction_record(made)
    assert try_read_id(key) == "pay"
    assert try_read_transaction("pay", value) == made


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_damaged_record_is_noticed(desk, cut):
    desk.init()
    key, value = desk.log[0]
    with pytest.raises(ProtocolViolation):
        TransactionShard(desk.config).replay(key, value[:-cut])


def test_a_record_of_an_unknown_kind_is_skipped(desk):
    desk.shard.replay(b"\x00\x07whatever", b"")
    assert len(desk.shard) == 0


def test_a_record_with_an_unknown_state_is_noticed(desk):
    desk.init()
    key, value = desk.log[0]
    # The state comes after version, id, epoch and timeout.
    broken = bytearray(value)
    broken[2 + 8 + 2 + 4] = 99
    with pytest.raises(ProtocolViolation):
        desk.shard.replay(key, bytes(broken))


def test_S42_a_hundred_thousand_ids_are_kept_and_the_next_one_is_refused():
    shard = TransactionShard(TransactionConfig(), limit := TransactionLimit(MANY_IDS))
    for number in range(MANY_IDS):
        made = Transaction(
            transactional_id=f"id-{number}", producer_id=number, epoch=0, timeout_ms=1000
        )
        shard.replay(*transaction_record(made))
    assert limit.count == MANY_IDS
    code = refusal(
        lambda: shard.init_producer(
            "one more",
            timeout_ms=1000,
            resumed=None,
            fresh_id=lambda: 1,
            now=TransactionDesk().now,
        )
    )
    assert code is ErrorCode.POLICY_VIOLATION
    shard.resign()
    assert limit.count == 0


def test_S42_transactions_that_never_end_have_a_limited_number_of_partitions(monkeypatch):
    monkeypatch.setattr(shard_module, "OPEN_TRANSACTION_PARTITIONS_MAX", 3)
    desk = TransactionDesk()
    first, second = desk.init(), desk.init(transactional_id="other")
    desk.add(first, "t-0", "t-1")
    desk.add(second, "t-0", transactional_id="other")
    desk.add(first, "t-1")
    assert refusal(lambda: desk.add(first, "t-2")) is ErrorCode.POLICY_VIOLATION
    desk.end(first)
    desk.finish()
    desk.add(second, "t-1", "t-2", transactional_id="other")
    reloaded = TransactionShard(TransactionConfig(), limit := TransactionLimit(MANY_IDS))
    for key, value in desk.log:
        reloaded.replay(key, value)
    assert limit.partitions == 3
    reloaded.resign()
    assert limit.partitions == 0


def test_a_refused_id_costs_no_producer_id():
    desk = TransactionDesk(TransactionConfig(transactional_ids_max=1))
    desk.init()
    before = desk.fresh_id()
    refusal(lambda: desk.init(transactional_id="other"))
    assert desk.fresh_id() == before + 1


def test_a_transaction_with_too_many_partitions_is_refused(desk):
    producer = desk.init()
    names = [f"t-{index}" for index in range(TRANSACTION_PARTITIONS_MAX)]
    desk.add(producer, *names)
    assert refusal(lambda: desk.add(producer, "u-0")) is ErrorCode.POLICY_VIOLATION
    desk.end(producer)
    desk.finish()
    assert desk.shard.describe(ID).status is TransactionStatus.COMPLETE_COMMIT


def test_a_transaction_that_names_too_much_is_refused_before_its_record_is_too_large(desk):
    producer = desk.init()
    names = [f"{number:05}{'x' * 240}-0" for number in range(TRANSACTION_PARTITIONS_MAX)]
    assert refusal(lambda: desk.add(producer, *names)) is ErrorCode.POLICY_VIOLATION
    assert max(len(value) for _, value in desk.log) < TRANSACTION_RECORD_BYTES_MAX


def test_S42_transactions_that_are_never_ended_are_aborted_a_batch_at_a_time(desk):
    for number in range(250):
        producer = desk.init(transactional_id=f"id-{number}", timeout_ms=1000)
        desk.add(producer, "t-0", transactional_id=f"id-{number}")
    desk.ms += 1000
    first = desk.shard.expire(desk.now)
    assert len(first.records) < 250
    desk.apply(first)
    desk.advance(0)
    states = {found.status for found in desk.shard.transactions()}
    assert states == {TransactionStatus.PREPARE_ABORT}
    desk.finish()
    assert {found.status for found in desk.shard.transactions()} == {
        TransactionStatus.COMPLETE_ABORT
    }


def test_I23_the_deadline_of_a_transaction_is_not_moved_by_more_partitions(desk):
    producer = desk.init(timeout_ms=10_000)
    desk.add(producer, "t-0")
    for index in range(1, 12):
        desk.advance(999)
        if desk.shard.describe(ID).status is not TransactionStatus.ONGOING:
            break
        desk.add(producer, f"t-{index}")
    assert desk.ms < 11_000
    assert desk.shard.describe(ID).status is TransactionStatus.PREPARE_ABORT


def test_no_client_may_use_the_epoch_that_is_kept_for_markers(desk):
    producer = desk.init()
    before = desk.shard.describe(ID)
    worn = Transaction(
        transactional_id=ID,
        producer_id=producer.producer_id,
        epoch=EPOCH_MAX,
        timeout_ms=before.timeout_ms,
        status=TransactionStatus.COMPLETE_ABORT,
    )
    desk.shard.replay(*transaction_record(worn))
    forged = ProducerName(producer.producer_id, EPOCH_MAX)
    assert refusal(lambda: desk.add(forged, "t-0")) is ErrorCode.PRODUCER_FENCED
    assert desk.init().producer_id != producer.producer_id


@pytest.mark.parametrize("epoch", [-1, 5, EPOCH_MAX])
@pytest.mark.parametrize("version", [0, 2])
def test_I22_a_wrong_epoch_ends_nothing(desk, epoch, version):
    producer = desk.init()
    desk.add(producer, "t-0")
    wrong = producer._replace(epoch=epoch)
    assert refusal(lambda: desk.end(wrong, version=version)) is ErrorCode.PRODUCER_FENCED
    assert desk.shard.describe(ID).status is TransactionStatus.ONGOING


def test_markers_of_an_older_decision_complete_nothing(desk):
    producer = desk.init()
    desk.add(producer, "t-0")
    desk.end(producer, version=2)
    old = desk.wanted[0]
    desk.finish()
    newer = producer._replace(epoch=1)
    desk.add(newer, "t-0", version=2)
    desk.end(newer, version=2)
    desk.complete(old)
    assert desk.shard.describe(ID).status is TransactionStatus.PREPARE_COMMIT


def test_I20_an_older_decision_of_the_same_epoch_completes_nothing(desk):
    producer = desk.init()
    desk.add(producer, "t-0")
    desk.end(producer)
    old = desk.wanted[0]
    desk.finish()
    desk.advance(1)
    desk.add(producer, "t-0")
    desk.end(producer)
    desk.complete(old)
    assert desk.shard.describe(ID).status is TransactionStatus.PREPARE_COMMIT
    desk.finish()
    assert desk.shard.describe(ID).status is TransactionStatus.COMPLETE_COMMIT


def worn_out(desk):
    """A producer with the last epoch of its id."""
    producer = desk.init()._replace(epoch=LAST_GIVEN_EPOCH)
    worn = replace(desk.shard.describe(ID), epoch=LAST_GIVEN_EPOCH)
    desk.apply(Result(None, [transaction_record(worn)]))
    return producer


def test_T52_a_producer_with_a_new_id_waits_for_the_markers_of_its_old_one(desk):
    old = worn_out(desk)
    desk.add(old, "t-0", version=2)
    new = desk.end(old, version=2)
    assert (new.producer_id != old.producer_id, new.epoch) == (True, 0)
    busy = ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(lambda: desk.add(new, "t-0", version=2)) is busy
    assert refusal(lambda: desk.end(new, is_commit=False, version=2)) is busy
    assert refusal(lambda: desk.init(resumed=new)) is busy
    desk.finish()
    desk.add(new, "t-0", version=2)


def test_I19_an_old_instance_does_not_get_the_new_id_of_its_successor(desk):
    old = worn_out(desk)
    new = desk.init()
    assert new.producer_id != old.producer_id
    assert refusal(lambda: desk.init(resumed=old)) is ErrorCode.PRODUCER_FENCED


def test_T52_a_producer_that_missed_its_new_id_gets_it_again(desk):
    old = worn_out(desk)
    new = desk.init(resumed=old)
    assert new.producer_id != old.producer_id
    assert desk.init(resumed=old) == new


def test_an_id_that_is_not_known_cannot_be_described(desk):
    assert refusal(lambda: desk.shard.describe("x")) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_a_refusal_changes_nothing(desk):
    producer = desk.init()
    desk.add(producer, "t-0")
    before = list(desk.shard.transactions())
    ending = Ending(producer._replace(epoch=9), True, 0)
    refusal(lambda: desk.shard.end(ID, ending, fresh_id=desk.fresh_id, now=desk.now))
    assert list(desk.shard.transactions()) == before
    assert isinstance(desk.log[0], CoordinatorRecord)
