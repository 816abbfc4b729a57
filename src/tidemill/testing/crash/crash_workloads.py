"""The workloads that a `MiniBroker` runs while `crash_states` lets it crash.

Each short workload covers one kind of failure; `mixed_workload` covers everything.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.core.ids import TopicPartition
from tidemill.core.rng import Rng
from tidemill.testing.crash.mini_broker import MiniBroker
from tidemill.testing.crash.promises import SentBatch
from tidemill.testing.sim.disk import SimDisk

__all__ = [
    "A",
    "creation_workload",
    "damage_workload",
    "deletion_workload",
    "failing_disk_workload",
    "journal_workload",
    "kill_workload",
    "mixed_workload",
    "restart_workload",
    "transaction_workload",
    "truncation_workload",
]

A = TopicPartition("a", 0)
B = TopicPartition("b", 0)
RECORDS_MAX = 3


def failing_disk_workload(broker: MiniBroker, disk: SimDisk) -> None:
    """A sync fails, the operator restarts the broker, the client repeats what got no answer."""
    broker.create(A, 1)
    broker.produce(A, size=900, producer_id=1)
    broker.flush()
    unanswered = broker.produce(A, size=9_000, producer_id=1)
    disk.fail("sync", ".log")
    broker.flush()
    broker.flush()
    broker.reopen(disk.restart())
    _repeat(broker, unanswered)
    broker.produce(A, size=300, producer_id=1)
    broker.flush()
    broker.checkpoint()


def kill_workload(broker: MiniBroker, disk: SimDisk) -> None:
    """The process is killed with an unflushed tail; the next one finds it in the page cache."""
    broker.create(A, 1)
    broker.produce(A, size=900, producer_id=1)
    broker.flush()
    for _ in range(2):
        broker.produce(A, size=1_500, producer_id=1)
    unanswered = broker.produce(A, size=1_500, producer_id=1)
    broker.reopen(disk.restart())
    _repeat(broker, unanswered)
    broker.checkpoint()


def creation_workload(broker: MiniBroker, disk: SimDisk) -> None:
    """Logs are created and deleted in groups; some are created again under their names."""
    many = [TopicPartition("many", number) for number in range(4)]
    broker.create_all(many, 1)
    broker.produce(many[0], size=300, producer_id=1)
    broker.produce(many[1], size=300)
    broker.flush()
    broker.delete(many[0])
    broker.purge()
    broker.checkpoint()
    for partition in many[1:3]:
        broker.delete(partition)
    broker.create_all(many[1:3], 2)
    broker.produce(many[1], size=200, producer_id=1)
    broker.flush()
    broker.purge()
    broker.reopen(disk.restart())
    broker.produce(many[3], size=200)
    broker.flush()


def truncation_workload(broker: MiniBroker, _disk: SimDisk) -> None:
    """A checkpoint promises more than a truncation leaves; then the log grows past it again."""
    broker.create(A, 1)
    for _ in range(6):
        broker.produce(A, size=500, producer_id=1)
    broker.flush()
    broker.checkpoint()
    broker.truncate(A, 3)
    broker.new_leader_epoch()
    for _ in range(6):
        broker.produce(A, size=400, producer_id=2)
    broker.flush()
    broker.produce(A, size=400, producer_id=1)
    broker.flush()


def transaction_workload(broker: MiniBroker, disk: SimDisk) -> None:
    """Transactions over several segments end, are cut open again, and outlive processes."""
    broker.create(A, 1)
    for producer_id in (20, 21, 20, 22):
        broker.transact(A, size=400, producer_id=producer_id)
    broker.flush()
    broker.end(A, 20, commit=False)
    for _ in range(2):
        broker.produce(A, size=400, producer_id=1)
    cut_at = broker.log(A).log_end_offset
    broker.transact(A, size=100, producer_id=20)
    broker.end(A, 20, commit=False)
    broker.end(A, 21, commit=False)
    broker.flush()
    broker.checkpoint()
    broker.truncate(A, cut_at)
    broker.new_leader_epoch()
    for _ in range(5):
        broker.produce(A, size=100)
    broker.end(A, 21, commit=True)
    broker.produce(A, size=1_500)
    broker.flush()
    broker.checkpoint()
    broker.reopen(disk.restart())
    broker.transact(A, size=300, producer_id=22)
    broker.end(A, 22, commit=False)
    broker.flush()
    broker.apply_retention(A, keep_bytes=2_500)


def journal_workload(broker: MiniBroker, disk: SimDisk) -> None:
    """Laps of the journal end, and logs are cut, deleted and created again between them."""
    broker.create(A, 1)
    broker.create(B, 2)
    _fill_journal(broker, rounds=6)
    broker.settle()
    _fill_journal(broker, rounds=2)
    _cut_in_journal(broker, A)
    broker.settle()
    _fill_journal(broker, rounds=1)
    _cut_in_journal(broker, B)
    broker.checkpoint()
    broker.delete(A)
    broker.create(A, 3)
    _fill_journal(broker, rounds=2)
    broker.delete(A)
    broker.create(A, 4)
    _fill_journal(broker, rounds=1)
    broker.purge()
    broker.reopen(disk.restart())
    _cut_in_journal(broker, B)
    _fill_journal(broker, rounds=2)


def restart_workload(broker: MiniBroker, _disk: SimDisk) -> None:
    """Retention drops a segment with bytes in the journal; the log restarts at its base offset."""
    broker.create(A, 1)
    _flush_each(broker, 6)
    base_offset = broker.log(A).segments.active.base_offset
    broker.checkpoint()
    broker.apply_retention(A, keep_bytes=0)
    broker.restart_log(A, base_offset)
    broker.new_leader_epoch()
    for size in (50, 77, 300):
        broker.produce(A, size=size)
    broker.flush()
    _flush_each(broker, 1)


def deletion_workload(broker: MiniBroker, _disk: SimDisk) -> None:
    """DeleteRecords up to the end of a log whose bytes are in the journal; then the lap ends."""
    broker.create(A, 1)
    _flush_each(broker, 4)
    broker.delete_records(A, broker.log(A).log_end_offset)
    broker.settle()
    _flush_each(broker, 2)


def _flush_each(broker: MiniBroker, count: int) -> None:
    for _ in range(count):
        broker.produce(A, size=90)
        broker.flush()


def _fill_journal(broker: MiniBroker, *, rounds: int) -> None:
    """Rounds of one log and of two; the first of a log stores its epochs besides."""
    for _ in range(rounds):
        broker.produce(A, size=90, producer_id=1)
        broker.flush()
        broker.produce(A, size=90)
        broker.produce(B, size=60, producer_id=2)
        broker.flush()


def _cut_in_journal(broker: MiniBroker, partition: TopicPartition) -> None:
    """Cut what was flushed last, and write something else in its place."""
    broker.truncate(partition, broker.log(partition).log_end_offset - 1)
    broker.new_leader_epoch()
    broker.produce(partition, size=70)
    broker.flush()
    broker.produce(partition, size=70)
    broker.flush()


def damage_workload(broker: MiniBroker, disk: SimDisk) -> None:
    """A bit flips in data that was flushed long ago; the process ends; the log continues."""
    broker.create(A, 1)
    for _ in range(6):
        broker.produce(A, size=400, producer_id=1)
    broker.flush()
    broker.checkpoint()
    spoiled = broker.produce(A, size=400, producer_id=1)
    for _ in range(3):
        broker.produce(A, size=400, producer_id=1)
    broker.flush()
    broker.checkpoint()
    broker.spoil(disk, A, spoiled)
    broker.reopen(disk.restart())
    broker.produce(A, size=300, producer_id=1)
    broker.flush()


def _repeat(broker: MiniBroker, unanswered: SentBatch) -> None:
    """The client repeats an unanswered batch, if the log still has it, and gets an answer."""
    if broker.log(A).log_end_offset > unanswered.header.base_offset:
        broker.retry(A, unanswered)
    broker.flush()


# --- random order --------------------------------------------------------------------------------


def mixed_workload(
    broker: MiniBroker, disk: SimDisk, *, rng: Rng, steps: int, transactions: bool = False
) -> None:
    """Everything that happens to logs, in random order; or most of it, mainly transactions."""
    choice = _STEPS_WITH_TRANSACTIONS if transactions else _STEPS
    broker.create(A, 1)
    broker.create(B, 2)
    _opening(broker)
    for _ in range(steps):
        step = choice[rng.below(len(choice))]
        disk = step(broker, disk, rng, A if rng.below(2) else B)
    broker.flush()


def _opening(broker: MiniBroker) -> None:
    """What every run must contain: a producer that falls silent, a roll, a checkpoint."""
    silent = broker.produce(A, size=200, producer_id=9)
    broker.produce(B, size=200)
    broker.flush()
    for _ in range(3):
        broker.produce(A, size=900, producer_id=1)
    broker.retry(A, broker.produce(A, size=100, producer_id=2))
    broker.flush()
    broker.checkpoint()
    broker.apply_retention(A, keep_bytes=1_500)
    broker.retry(A, silent)
    broker.flush()


def _produce(broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition) -> SimDisk:
    for _ in range(1 + rng.below(3)):
        size = (60, 300, 900, 5_000)[rng.below(4)]
        producer_id = rng.below(4) - 1
        broker.produce(
            partition, size=size, producer_id=producer_id, records=1 + rng.below(RECORDS_MAX)
        )
    return disk


def _transact(broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition) -> SimDisk:
    size = (60, 300, 900)[rng.below(3)]
    broker.transact(partition, size=size, producer_id=20 + rng.below(3))
    return disk


def _end(broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition) -> SimDisk:
    broker.end(partition, 20 + rng.below(3), commit=rng.below(2) == 0)
    return disk


def _retry(broker: MiniBroker, disk: SimDisk, _rng: Rng, partition: TopicPartition) -> SimDisk:
    broker.retry(partition, broker.produce(partition, size=80, producer_id=1))
    return disk


def _flush(broker: MiniBroker, disk: SimDisk, _rng: Rng, _partition: TopicPartition) -> SimDisk:
    broker.flush()
    return disk


def _checkpoint(
    broker: MiniBroker, disk: SimDisk, _rng: Rng, _partition: TopicPartition
) -> SimDisk:
    broker.checkpoint()
    return disk


def _retention(broker: MiniBroker, disk: SimDisk, _rng: Rng, partition: TopicPartition) -> SimDisk:
    broker.apply_retention(partition, keep_bytes=2_500)
    return disk


def _delete_records(
    broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition
) -> SimDisk:
    log = broker.log(partition)
    span = log.flushed_offset - log.log_start_offset
    broker.delete_records(partition, log.log_start_offset + rng.below(span + 1))
    return disk


def _truncate(broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition) -> SimDisk:
    log = broker.log(partition)
    span = log.log_end_offset - log.log_start_offset - RECORDS_MAX
    if span > 0:  # a batch that reaches below the log start is not cut
        broker.truncate(partition, log.log_end_offset - rng.below(span))
        broker.new_leader_epoch()
    return disk


def _restart_log(broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition) -> SimDisk:
    offset = broker.log(partition).log_end_offset + rng.below(20) - 5
    broker.restart_log(partition, max(0, offset))
    broker.new_leader_epoch()
    return disk


def _clean_restart(
    broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition
) -> SimDisk:
    broker.close()
    return _kill(broker, disk, rng, partition)


def _kill(broker: MiniBroker, disk: SimDisk, _rng: Rng, _partition: TopicPartition) -> SimDisk:
    """The process ends; the next one finds the page cache as it was."""
    successor = disk.restart()
    broker.reopen(successor)
    return successor


def _recreate(broker: MiniBroker, disk: SimDisk, rng: Rng, partition: TopicPartition) -> SimDisk:
    broker.delete(partition)
    broker.create(partition, 100 + rng.below(1 << 30))
    broker.purge()
    return disk


_Step = Callable[[MiniBroker, SimDisk, Rng, TopicPartition], SimDisk]
_STEPS: tuple[_Step, ...] = (
    *[_produce] * 6,
    _retry,
    *[_flush] * 4,
    *[_checkpoint] * 2,
    _retention,
    _delete_records,
    _truncate,
    _restart_log,
    _clean_restart,
    _kill,
    _recreate,
)
"""A step is chosen as often as it is listed."""
_STEPS_WITH_TRANSACTIONS: tuple[_Step, ...] = (
    *[_produce] * 2,
    *[_transact] * 6,
    *[_end] * 4,
    *[_flush] * 3,
    *[_checkpoint] * 2,
    _retention,
    *[_truncate] * 2,
    _clean_restart,
    _kill,
)
