"""What a leader does with its log: it appends batches, and acknowledges them when their mark moves.

HOT PATH: `append` runs once per produced batch.

A partition that follows has a leader log too, which refuses every append meanwhile. The marks are
the partition's own, and it says when one has moved: only that releases an acknowledgement (R14).

All methods run on the event loop and none suspends, so a check still holds when its act runs (R9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from tidemill.core.errors import (
    DiskFull,
    ErrorCode,
    KafkaError,
    StorageFault,
    code_of,
    invariant,
)
from tidemill.delivery.intake import Requests, read_requests
from tidemill.replication.flushing.flush_requests import FlushRequests
from tidemill.replication.refused_batches import RefusedBatches, RefusedTotal
from tidemill.replication.waiting.waiters import AckWaiter, OffsetWaiters
from tidemill.storage.log.interface import PartitionLog
from tidemill.wire.batch import (
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    assign_offsets,
    read_header,
)
from tidemill.wire.produced_batch import BatchWork, prepare_own, prepare_produced
from tidemill.wire.transaction_marker import TransactionMarker, build_marker

if TYPE_CHECKING:
    from tidemill.replication.partition import Partition

__all__ = ["ACKS_ALL", "Appended", "LeaderLog"]

ACKS_ALL: Final = -1


@final
@dataclass(slots=True)
class Appended:
    """Where a batch was appended; for a recognised retry, where the original was."""

    base_offset: int
    next_offset: int
    log_append_time: int
    duplicate: bool = False


@final
class LeaderLog:
    """The log of one partition, as long as this broker leads it."""

    __slots__ = (
        "_appended_waiters",
        "_durable_waiters",
        "_flush_requested_offset",
        "_flushes",
        "_partition",
        "_refused",
        "_start_waiters",
        "agreed_start",
        "log",
    )

    def __init__(
        self, partition: Partition, flushes: FlushRequests, refused_total: RefusedTotal | None
    ) -> None:
        self._partition = partition
        self._flushes = flushes
        self.log: PartitionLog = partition.log
        self._appended_waiters = OffsetWaiters()
        self._durable_waiters = OffsetWaiters()
        self._start_waiters = OffsetWaiters()
        """Those that wait until no in-sync replica has what was deleted."""
        self.agreed_start = 0
        """Whoever joins must have deleted what is below: a client was told that it is gone."""
        self._refused = RefusedBatches(total=refused_total)
        self._flush_requested_offset = 0
        """The flusher has been asked, in this leader epoch, to flush everything below."""

    def epoch_began(self) -> None:
        """Another leader epoch: what was asked of the flusher in the last one does not count.

        What was refused does: of what another leader has acknowledged since, there is a copy here.
        """
        self._flush_requested_offset = 0
        self.agreed_start = self.log.log_start_offset

    def dropped(self) -> None:
        """The partition is not here any more."""
        self._refused.clear()

    def copied(self, headers: Sequence[BatchHeader]) -> None:
        """Another leader has taken these batches, perhaps also what was refused here."""
        if self._refused:
            for header in headers:
                self._refused.appended(header)

    def adopt_refused(self, refused: RefusedBatches) -> None:
        """What was refused before the partition was here."""
        self._refused.take_over(refused)

    # --- produced batches ------------------------------------------------------------------------

    def append(
        self, records: memoryview, *, acks: int, now_ms: int, work: BatchWork | None = None
    ) -> Appended:
        """Check one produced batch and append it. On KafkaError or StorageFault nothing changed.

        With `work`, LongBatch says that the check takes too long for the loop: nothing changed.
        """
        try:
            self._partition.check_writable(acks)
            policy = self._partition.settings.policy
            batch, header, requesting = prepare_produced(records, policy, now_ms, work)
            requests: Requests | None = None
            if requesting is not None:
                requests = read_requests(requesting, header, now_ms)
            return self._append_produced(batch, header, requests, acks=acks, now_ms=now_ms)
        except (KafkaError, StorageFault) as refusal:
            self.refused(records, code_of(refusal), now_ms)
            raise

    def append_checked(
        self,
        batch: memoryview,
        header: BatchHeader,
        requests: Requests | None,
        *,
        acks: int,
        now_ms: int,
    ) -> Appended:
        """Append a batch that was prepared, with what it asks for; otherwise like `append`."""
        try:
            self._partition.check_writable(acks)
            return self._append_produced(batch, header, requests, acks=acks, now_ms=now_ms)
        except (KafkaError, StorageFault) as refusal:
            self.refused(batch, code_of(refusal), now_ms)
            raise

    def refused(self, batch: memoryview, code: ErrorCode, now_ms: int) -> None:
        """Let none overtake a batch that clients repeat.

        Also while this broker follows: clients may have heard before it that it is to lead.
        """
        if not code.retriable:
            return
        with suppress(KafkaError):
            header = read_header(batch)
            # Not `check`: transactions that are open now may have ended when it comes again.
            if self._next_sequence(header) in (None, header.base_sequence):
                self._refused.add(header, code, now_ms)

    def _next_sequence(self, header: BatchHeader) -> int | None:
        """What the log expects of the producer of this batch; None: it does not know it."""
        return self.log.producers.try_next_sequence(header.producer_id, header.producer_epoch)

    def _append_produced(
        self,
        batch: memoryview,
        header: BatchHeader,
        requests: Requests | None,
        *,
        acks: int,
        now_ms: int,
    ) -> Appended:
        if header.producer_id >= 0:
            if self._refused:
                self._refused.check(header, now_ms)
            original = self.log.producers.check(header)
            if original is not None:
                return Appended(
                    original.base_offset, original.last_offset + 1, original.max_timestamp, True
                )
        self._check_fits(header)
        if requests is not None:
            self._partition.find_holds().take_in(requests, batch, header, acks=acks)
        # Last: what is refused for another reason takes no room.
        self._partition.room.take_for_records(header.size_bytes)
        appended = self._append_prepared(batch, header, acks=acks, now_ms=now_ms)
        if self._refused:
            self._refused.appended(header)
        return appended

    # --- batches of this broker ------------------------------------------------------------------

    def append_own(self, batch: bytearray, *, now_ms: int) -> Appended:
        """Append a batch that this broker built, with acks=all; otherwise like `append`.

        The batch must have timestamps of `now_ms`. One with a producer id has no sequence and is
        part of that producer's transaction, which it may open.
        """
        self._partition.check_writable(ACKS_ALL)
        view, header = prepare_own(memoryview(batch), self._partition.settings.policy, now_ms)
        if header.producer_id >= 0:
            invariant(
                header.is_transactional and header.base_sequence < 0 and not header.is_control,
                "an own batch with a producer is transactional and has no sequence",
            )
            self.log.producers.check_unsequenced(header)
        self._check_fits(header)
        self._partition.room.take_for_own(header.size_bytes)
        return self._append_prepared(view, header, acks=ACKS_ALL, now_ms=now_ms)

    def append_ours(self, batch: bytearray, *, now_ms: int) -> Appended:
        """Append a marked batch, of records that were taken in before; otherwise like `append`.

        It fits whatever the limits of the topic are by now: a hold must not be stuck. It may use
        the reserve: retention frees nothing behind a hold until that was carried or released.
        """
        self._partition.check_writable(ACKS_ALL)
        self._partition.room.take_for_own(len(batch))
        view = memoryview(batch)
        return self._append_prepared(view, read_header(view), acks=ACKS_ALL, now_ms=now_ms)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        is_bumped: bool = False,
    ) -> Appended:
        """End the producer's transaction here, with acks=all; otherwise like `append`.

        A marker that repeats one appends nothing, and its answer is a duplicate that ends where
        that one does. Afterwards nothing of an older producer epoch is appended (I19). Where
        transactions bump the epoch, the marker carries the epoch after the one that it ends and
        `is_bumped` is set: a late one cannot end the next transaction (I22). KafkaError
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        self._partition.check_writable(ACKS_ALL)
        log, producers = self.log, self.log.producers
        offset = log.log_end_offset
        if not producers.check_marker(
            producer_id, producer_epoch, coordinator_epoch, is_bumped=is_bumped
        ):
            return Appended(offset, offset, NO_TIMESTAMP, True)
        first_offset, stable_offset = producers.span_ended_at(producer_id, offset)
        batch = build_marker(
            TransactionMarker(is_commit, coordinator_epoch, first_offset, stable_offset),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp=now_ms,
        )
        self._partition.room.take_for_own(len(batch))
        view = memoryview(batch)
        return self._append_prepared(view, read_header(view), acks=ACKS_ALL, now_ms=now_ms)

    # --- every batch -----------------------------------------------------------------------------

    def _check_fits(self, header: BatchHeader) -> None:
        if header.size_bytes > self._partition.settings.segment_bytes:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, "larger than a segment")

    def _append_prepared(
        self, batch: memoryview, header: BatchHeader, *, acks: int, now_ms: int
    ) -> Appended:
        """Give the batch its offsets and append it: whether we may act was checked in this turn."""
        partition, log = self._partition, self.log
        base_offset, leader_epoch = log.log_end_offset, partition.leader_epoch
        assign_offsets(batch, base_offset, leader_epoch)
        header.base_offset = base_offset
        header.partition_leader_epoch = leader_epoch
        try:
            log.append((batch,), (header,), now_ms=now_ms)
        except DiskFull:
            partition.room.was_full()
            raise
        if partition.holds is not None:
            partition.holds.appended(batch, header)
        ack_waits = acks == ACKS_ALL and partition.settings.flush_before_ack
        next_offset = header.next_offset
        if ack_waits:
            self._flush_requested_offset = next_offset
        self._flushes.appended(log, header.size_bytes, ack_waits=ack_waits)
        partition.advance_marks()
        partition.follower_watches.grew()
        # As stored: a long batch was stamped before now, perhaps under another configuration.
        is_stamped = header.attributes & LOG_APPEND_TIME
        return Appended(
            base_offset, next_offset, header.max_timestamp if is_stamped else NO_TIMESTAMP
        )

    # --- acknowledgements ------------------------------------------------------------------------

    def wait_acknowledged(self, next_offset: int, settle: Callable[[ErrorCode], None]) -> AckWaiter:
        """Call `settle` once acks=all holds for everything below `next_offset` (ADR 0008)."""
        partition = self._partition
        waiter = AckWaiter(next_offset, settle)
        if partition.settings.flush_before_ack:
            if next_offset <= partition.durable_offset:
                waiter.settle(ErrorCode.NONE)
            else:
                self._durable_waiters.add(waiter)
                if next_offset > self._flush_requested_offset:
                    # Appended with acks=1; a retry with acks=all found it.
                    self._flush_requested_offset = self.log.log_end_offset
                    self._flushes.request(self.log)
        elif next_offset <= partition.high_watermark:
            waiter.settle(ErrorCode.NONE)
        else:
            self._appended_waiters.add(waiter)
        return waiter

    def high_watermark_moved(self, high_watermark: int) -> None:
        self._appended_waiters.release(high_watermark)

    def durable_offset_moved(self, durable_offset: int) -> None:
        self._durable_waiters.release(durable_offset)

    # --- deleted records -------------------------------------------------------------------------

    def delete_before(self, offset: int, settle: Callable[[ErrorCode], None]) -> AckWaiter:
        """Start the log here, and call `settle` once every in-sync replica's does (I9)."""
        partition = self._partition
        self.log.advance_start(offset)
        partition.follower_watches.log_starts_at(self.log.log_start_offset)
        waiter = AckWaiter(offset, settle)
        self._start_waiters.add(waiter)
        self.followers_may_have_deleted()
        return waiter

    def followers_may_have_deleted(self) -> None:
        """A follower has fetched, or others are in sync."""
        led = self._partition.led
        if len(self._start_waiters) and led is not None:
            agreed = led.agreed_start(self.log.log_start_offset)
            self.agreed_start = max(self.agreed_start, agreed)
            self._start_waiters.release(agreed)

    def fail_waiters(self, code: ErrorCode) -> None:
        """Answer every waiting acknowledgement with `code`: the partition cannot promise it."""
        self._appended_waiters.fail(code)
        self._durable_waiters.fail(code)
        self._start_waiters.fail(code)
