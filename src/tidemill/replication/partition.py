"""One partition on this broker: its log, its role, its marks, and the requests that wait for them.

HOT PATH: `append` and `read` run once per batch and once per fetched partition.

Theory of operation. The role comes from the metadata image alone: when the image changes, the
replica manager calls `become_leader`, `become_follower` or `resign`, and nothing else changes the
role. A leader validates batches, assigns offsets and appends. Each append, flush and follower fetch
may move the two marks (`watermark.py`), and only a mark that moves releases an acknowledgement
(R14). A follower appends what the leader sends, byte for byte.

All methods run on the event loop and none suspends, so a check still holds when its act runs (R9).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from tidemill.core.errors import ErrorCode, KafkaError, invariant
from tidemill.core.ids import TopicId, TopicPartition
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.replication.isr import FollowerPosition
from tidemill.replication.waiters import AckWaiter, OffsetWaiters, Watcher
from tidemill.replication.watermark import agreed_offset
from tidemill.storage.files.disk import Buffer
from tidemill.storage.log.interface import LogCut, LogSlice, PartitionLog
from tidemill.wire.batch import LOG_APPEND_TIME, BatchHeader, assign_offsets, iter_headers, verify
from tidemill.wire.produced_batch import BatchPolicy, BatchWork, prepare_own, prepare_produced

__all__ = ["Appended", "FlushRequests", "Partition", "PartitionSettings"]

NO_EPOCH = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
ACKS_ALL = -1


class FlushRequests(Protocol):
    """What a partition asks of the flusher of its data directory."""

    def appended(self, log: PartitionLog, size_bytes: int, *, ack_waits: bool) -> None:
        """The log grew. It is flushed in the next round if `ack_waits`, else by its own rules."""
        ...

    def request(self, log: PartitionLog) -> None:
        """Flush everything that this log holds now in the next round."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """The topic keys that a partition itself obeys; replaced as a whole when one changes."""

    policy: BatchPolicy
    in_sync_min: int = 1
    flush_before_ack: bool = True
    """tidemill.flush=group: acks=all waits for the durable offset, not only the high watermark."""
    segment_bytes: int = 1 << 30


@final
@dataclass(slots=True)
class Appended:
    """Where a batch was appended; for a recognised retry, where the original was."""

    base_offset: int
    next_offset: int
    log_append_time: int
    duplicate: bool = False


@final
class Partition:
    """One replica of a partition, leading, following or neither."""

    def __init__(
        self,
        name: TopicPartition,
        topic_id: TopicId,
        log: PartitionLog,
        *,
        broker_id: int,
        settings: PartitionSettings,
        flushes: FlushRequests,
        high_watermark: int,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.settings = settings
        self.image: PartitionImage | None = None
        self.leader_epoch = NO_EPOCH
        self.is_leader = False
        self.offline = False
        """The log directory failed: every request gets KAFKA_STORAGE_ERROR."""
        self.is_being_cut = False
        """A thread cuts the log: nothing may be appended."""
        self.after_cut: Callable[[], None] | None = None
        """Takes on the role that came while the log was cut."""
        self.high_watermark = max(high_watermark, log.log_start_offset)
        """Every in-sync replica has appended everything below; never goes back on a leader (I9)."""
        self.durable_offset = log.log_start_offset
        """Every in-sync replica has flushed everything below; at most the high watermark."""
        self.epoch_start_offset = 0
        """The log end when this broker became leader: everything below is of an older epoch."""
        self.followers: dict[int, FollowerPosition] = {}
        self._broker_id = broker_id
        self._flushes = flushes
        self.isr: tuple[int, ...] = ()
        self.effective_in_sync_min = 1
        """The configured minimum, capped at the number of replicas."""
        self._maximal_isr: tuple[int, ...] = ()
        self._alone = False
        """No other replica is in sync or needs to be: our own log decides both marks."""
        self._appended_waiters = OffsetWaiters()
        self._durable_waiters = OffsetWaiters()
        self._flush_requested_offset = 0
        """The flusher has been asked, in this leader epoch, to flush everything below."""
        self.consumer_watchers: dict[Watcher, None] = {}
        """Parked fetches of consumers, woken when the high watermark moves."""
        self.replica_watchers: dict[Watcher, None] = {}
        """Parked fetches of followers, woken when the log end or the watermark moves (KIP-1166)."""

    # --- role ------------------------------------------------------------------------------------

    def become_leader(self, image: PartitionImage, *, now: float) -> None:
        """Lead under `image.leader_epoch`; if we already do, only adopt the in-sync set."""
        if not self.is_leader or image.leader_epoch != self.leader_epoch:
            self._start_epoch(image.leader_epoch)
            self.is_leader = True
            self.epoch_start_offset = self.log.log_end_offset
            self._flush_requested_offset = 0
            self.log.epochs.assign(image.leader_epoch, self.epoch_start_offset)
            self.followers = {
                broker_id: FollowerPosition(caught_up_at=now)
                for broker_id in image.replicas
                if broker_id != self._broker_id
            }
        self._adopt_isr(image)
        self.maybe_advance_marks()

    def become_follower(self, image: PartitionImage) -> None:
        """Follow `image.leader`; waiting requests are refused, so that clients find the leader."""
        self._start_epoch(image.leader_epoch)
        self.is_leader = False
        self.followers = {}
        self._adopt_isr(image)
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._wake_everyone()

    def resign(self, code: ErrorCode) -> None:
        """Stop serving: the topic was deleted, or the log directory failed."""
        self.is_leader = False
        self.fail_waiters(code)
        self._wake_everyone()

    def go_offline(self) -> None:
        self.offline = True
        self.resign(ErrorCode.KAFKA_STORAGE_ERROR)

    def _start_epoch(self, epoch: int) -> None:
        invariant(epoch >= self.leader_epoch, f"{self.name}: leader epoch went back")
        self.leader_epoch = epoch

    def _adopt_isr(self, image: PartitionImage) -> None:
        self.image = image
        self.isr = image.isr
        self._set_maximal_isr(image.isr)

    def _set_maximal_isr(self, isr: tuple[int, ...]) -> None:
        self._maximal_isr = isr
        self.effective_in_sync_min = min(self.settings.in_sync_min, len(self.followers) + 1)
        self._alone = isr == (self._broker_id,) and self.effective_in_sync_min <= 1

    def set_settings(self, settings: PartitionSettings) -> None:
        """Adopt changed topic keys; a lower minimum may release waiting requests."""
        self.settings = settings
        self._set_maximal_isr(self._maximal_isr)
        self.maybe_advance_marks()

    def propose_isr(self, isr: tuple[int, ...]) -> None:
        """Let the marks respect both the current and the proposed set until that is decided."""
        self._set_maximal_isr(tuple(sorted({*self.isr, *isr})))

    def withdraw_isr_proposal(self) -> None:
        """The store refused the proposal: only the current set counts again."""
        self._set_maximal_isr(self.isr)
        self.maybe_advance_marks()

    # --- leader: produce -------------------------------------------------------------------------

    def append(
        self, records: memoryview, *, acks: int, now_ms: int, work: BatchWork | None = None
    ) -> Appended:
        """Check one produced batch and append it. On KafkaError or StorageFault nothing changed.

        With `work`, LongBatch says that the check takes too long for the loop: nothing changed.
        """
        self.check_writable(acks)
        batch, header = prepare_produced(records, self.settings.policy, now_ms, work)
        return self._append_produced(batch, header, acks=acks, now_ms=now_ms)

    def append_checked(
        self, batch: memoryview, header: BatchHeader, *, acks: int, now_ms: int
    ) -> Appended:
        """Append a batch that `prepare_produced` returned; otherwise like `append`."""
        self.check_writable(acks)
        return self._append_produced(batch, header, acks=acks, now_ms=now_ms)

    def _append_produced(
        self, batch: memoryview, header: BatchHeader, *, acks: int, now_ms: int
    ) -> Appended:
        if header.producer_id >= 0:
            original = self.log.producers.check(header)
            if original is not None:
                return Appended(
                    original.base_offset, original.last_offset + 1, original.max_timestamp, True
                )
        return self._append_prepared(batch, header, acks=acks, now_ms=now_ms)

    def append_own(self, batch: bytearray, *, now_ms: int) -> Appended:
        """Append a batch that this broker built, with acks=all; otherwise like `append`.

        The batch must have no producer id and timestamps of `now_ms`.
        """
        self.check_writable(ACKS_ALL)
        view, header = prepare_own(memoryview(batch), self.settings.policy, now_ms)
        return self._append_prepared(view, header, acks=ACKS_ALL, now_ms=now_ms)

    def _append_prepared(
        self, batch: memoryview, header: BatchHeader, *, acks: int, now_ms: int
    ) -> Appended:
        size_bytes = header.size_bytes
        if size_bytes > self.settings.segment_bytes:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, "larger than a segment")
        log = self.log
        base_offset = log.log_end_offset
        assign_offsets(batch, base_offset, self.leader_epoch)
        header.base_offset = base_offset
        header.partition_leader_epoch = self.leader_epoch
        log.append((batch,), (header,), now_ms=now_ms)
        ack_waits = acks == ACKS_ALL and self.settings.flush_before_ack
        next_offset = header.next_offset
        if ack_waits:
            self._flush_requested_offset = next_offset
        self._flushes.appended(log, size_bytes, ack_waits=ack_waits)
        self.maybe_advance_marks()
        if self.replica_watchers:
            for watcher in self.replica_watchers:
                watcher.wake()
        # As stored: a long batch was stamped before now, perhaps under another configuration.
        is_stamped = header.attributes & LOG_APPEND_TIME
        return Appended(
            base_offset, next_offset, header.max_timestamp if is_stamped else NO_TIMESTAMP
        )

    def wait_acknowledged(self, next_offset: int, settle: Callable[[ErrorCode], None]) -> AckWaiter:
        """Call `settle` once acks=all holds for everything below `next_offset` (ADR 0008)."""
        waiter = AckWaiter(next_offset, settle)
        if self.settings.flush_before_ack:
            if next_offset <= self.durable_offset:
                waiter.settle(ErrorCode.NONE)
            else:
                self._durable_waiters.add(waiter)
                if next_offset > self._flush_requested_offset:
                    # Appended with acks=1; a retry with acks=all found it.
                    self._flush_requested_offset = self.log.log_end_offset
                    self._flushes.request(self.log)
        elif next_offset <= self.high_watermark:
            waiter.settle(ErrorCode.NONE)
        else:
            self._appended_waiters.add(waiter)
        return waiter

    def check_writable(self, acks: int) -> None:
        """KafkaError if any append with these acks would be refused."""
        self.check_leader()
        if acks == ACKS_ALL and len(self.isr) < self.effective_in_sync_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(self.isr)} in sync")

    def check_leader(self) -> None:
        if self.offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Compare the client's leader epoch with ours (T36); -1 skips the check."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # --- marks -----------------------------------------------------------------------------------

    def maybe_advance_marks(self) -> None:
        """Move both marks as far as the in-sync replicas agree, and release their waiters."""
        if not self.is_leader:
            return
        log = self.log
        if self._alone:
            self._move_marks(log.log_end_offset, log.flushed_offset)
            return
        count, minimum = len(self.isr), self.effective_in_sync_min
        appended = agreed_offset(
            self._positions(log.log_end_offset, "log_end_offset"),
            in_sync_count=count,
            in_sync_min=minimum,
            current=self.high_watermark,
        )
        durable = agreed_offset(
            self._positions(log.flushed_offset, "flushed_offset"),
            in_sync_count=count,
            in_sync_min=minimum,
            current=self.durable_offset,
        )
        self._move_marks(appended, durable)

    def _positions(self, own: int, field: str) -> list[int]:
        return [
            own if broker_id == self._broker_id else getattr(self.followers[broker_id], field)
            for broker_id in self._maximal_isr
            if broker_id == self._broker_id or broker_id in self.followers
        ]

    def _move_marks(self, appended: int, durable: int) -> None:
        if appended > self.high_watermark:
            self.high_watermark = appended
            if self._appended_waiters:
                self._appended_waiters.release(appended)
            if self.consumer_watchers or self.replica_watchers:
                self._wake_everyone()
        durable = min(durable, self.high_watermark)
        if durable > self.durable_offset:
            self.durable_offset = durable
            self._durable_waiters.release(durable)

    def follower_fetched(
        self, broker_id: int, *, fetch_offset: int, flushed_offset: int, now: float
    ) -> None:
        """A follower's fetch is its acknowledgement of everything before `fetch_offset`."""
        position = self.followers.get(broker_id)
        if position is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{broker_id} is no replica")
        if fetch_offset > self.log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{broker_id} is ahead of its leader")
        position.fetched(
            fetch_offset=fetch_offset,
            flushed_offset=flushed_offset,
            leader_end=self.log.log_end_offset,
            now=now,
        )
        self.maybe_advance_marks()

    def follower_restarted(self, broker_id: int) -> None:
        """Forget a broker's position when it registers or leaves: it may have lost data (I14)."""
        position = self.followers.get(broker_id)
        if position is not None:
            self.followers[broker_id] = FollowerPosition(caught_up_at=position.caught_up_at)

    def fail_waiters(self, code: ErrorCode) -> None:
        """Answer every waiting acknowledgement with `code`: the partition cannot promise it."""
        self._appended_waiters.fail(code)
        self._durable_waiters.fail(code)

    def _wake_everyone(self) -> None:
        for watcher in (*self.consumer_watchers, *self.replica_watchers):
            watcher.wake()

    # --- reading ---------------------------------------------------------------------------------

    def last_stable_offset(self) -> int:
        """How far read_committed may read: the high watermark, as there are no transactions yet."""
        return self.high_watermark

    def read(self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool) -> LogSlice:
        """Whole batches below `end_offset` (a mark for consumers, the log end for followers)."""
        return self.log.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )

    def compactable_offset(self) -> int:
        """Records below it cannot be lost, so compaction may drop what they replace (I35)."""
        committed = min(self.high_watermark, self.last_stable_offset())
        return min(committed, self.durable_offset) if self.is_leader else committed

    def end_offset_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and where it ended (T37).

        (-1, -1) for an epoch above ours: nobody has led in it, so its records cannot be here.
        """
        if epoch > self.leader_epoch:
            return NO_EPOCH, NO_OFFSET
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    # --- follower --------------------------------------------------------------------------------

    def append_from_leader(self, batches: Buffer, *, high_watermark: int, now_ms: int) -> int:
        """Append the leader's batches, checked but unchanged; returns how many were whole.

        A batch that the fetch limit cut off is left for the next fetch.
        """
        if self.is_being_cut:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its log is being cut")
        view = memoryview(batches)
        found = list(iter_headers(view))
        if found:
            self._check_from_leader(view, found)
            last_position, last = found[-1]
            end = last_position + last.size_bytes
            self.log.append((view[:end],), [header for _, header in found], now_ms=now_ms)
            self._flushes.appended(self.log, end, ack_waits=False)
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log.log_end_offset))
        return len(found)

    def try_find_begin(self, batches: Buffer) -> int | None:
        """Where an empty log must restart that starts inside the leader's first batch."""
        end = self.log.log_end_offset
        if self.log.log_start_offset < end:
            return None
        for _, first in iter_headers(memoryview(batches)):
            return first.base_offset if first.base_offset < end else None
        return None

    def _check_from_leader(
        self, view: memoryview, found: Sequence[tuple[int, BatchHeader]]
    ) -> None:
        """Check the checksums, and that no offset is sent twice (S23)."""
        expected = self.log.log_end_offset
        for position, header in found:
            if header.base_offset < expected:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE, f"the leader sent offset {header.base_offset} again"
                )
            verify(view[position : position + header.size_bytes], header)
            expected = header.next_offset

    def plan_truncation(self, epoch: int, end_offset: int) -> LogCut | None:
        """Drop the tail that the leader does not have: by epochs, never by the watermark (KIP-279).

        `epoch` is the leader's largest epoch up to ours, and ended there at `end_offset`. If it
        ended earlier here, or is unknown here, our own end of it is the last common point. If all
        our epochs are newer, that is the start of the oldest.
        """
        _, own_end = self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)
        offset = min(end_offset, own_end) if own_end >= 0 else self.log.log_start_offset
        cut = self.log.plan_truncation(offset)
        if cut is None:
            self._adopt_end()
        return cut

    def plan_restart(self, offset: int) -> LogCut:
        """Drop the whole log and start at `offset`: the leader no longer has what follows ours."""
        return self.log.plan_restart(offset)

    def begin_cut(self, cut: LogCut) -> bool:
        """Readers find the shorter log from now on; see `LogCut.begin`."""
        if not cut.begin():
            return False
        self._adopt_end()
        return True

    def cut_ended(self) -> None:
        """The log may be appended to again."""
        self.is_being_cut = False
        take_role, self.after_cut = self.after_cut, None
        if take_role is not None:
            take_role()

    def _adopt_end(self) -> None:
        """Bring epochs and marks in line with a log that may be shorter or start elsewhere."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        # Also where nothing was cut: an epoch in which we led but wrote nothing must go. The leader
        # does not know that epoch and would report a divergence forever.
        self.log.epochs.truncate_from_end(end)
        self.high_watermark = min(max(self.high_watermark, start), end)
        self.durable_offset = min(max(self.durable_offset, start), end)
