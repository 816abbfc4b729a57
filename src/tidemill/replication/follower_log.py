"""What a follower does with its log: it appends what its leader sends, and cuts where they differ.

A partition that leads has a follower log too, which nobody uses meanwhile: roles change while a cut
still runs. The marks are the partition's own; a follower's high watermark is what its leader told
it, as far as its log goes, and may go back when the log is cut.

All methods run on the event loop and none suspends. `log_cutter.py` makes cuts in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.replication.flushing.flush_requests import FlushRequests
from tidemill.replication.following import RefusedCut, check_batches
from tidemill.storage.files.disk import Buffer
from tidemill.storage.log.interface import LogCut, PartitionLog
from tidemill.wire.batch import BatchHeader, iter_headers
from tidemill.wire.marks import is_ours

if TYPE_CHECKING:
    from tidemill.replication.partition import Partition

__all__ = ["FollowerLog"]


@final
class FollowerLog:
    """The log of one partition, as long as another broker leads it."""

    __slots__ = (
        "_flushes",
        "_leader_start_offset",
        "_partition",
        "_saved_start",
        "after_cut",
        "is_being_cut",
        "knows_mark",
        "log",
        "refused_cut",
    )

    def __init__(self, partition: Partition, flushes: FlushRequests) -> None:
        self._partition = partition
        self._flushes = flushes
        self.log: PartitionLog = partition.log
        self.is_being_cut = False
        """A thread cuts the log: nothing may be appended."""
        self.after_cut: Callable[[], None] | None = None
        """Takes on the role that came while the log was cut."""
        self._leader_start_offset = 0
        """Below it the leader has nothing, as it said in this epoch."""
        self._saved_start: int | None = None
        """Where the log started when that was last saved; None: there is nothing to save."""
        self.knows_mark = False
        """The leader of this epoch has confirmed the high watermark here: readers may have it."""
        self.refused_cut: RefusedCut | None = None
        """What the leader of this epoch asks for, and must not be done: nothing is fetched."""

    @property
    def name(self) -> TopicPartition:
        return self._partition.name

    @property
    def is_whole(self) -> bool:
        """Whether the leader may count us: not by fetches with holes behind them (I14).

        Who may be elected already goes on: it has the newest records, and others what it lacks.
        After a recovery that found damage, the in-sync set that we know may be from before it.
        """
        if self.is_being_cut or self.log.damage.cut_offset is not None:
            return False
        partition = self._partition
        image = partition.image
        if not self.log.damage.is_open or image is None:
            return True
        return partition.broker_id in image.isr or partition.broker_id in image.elr

    def epoch_began(self) -> None:
        """Another leader epoch: what the last leader said does not count."""
        self._leader_start_offset = 0
        self.knows_mark = False
        self.refused_cut = None

    def flush_old(self) -> None:
        """Flush what came before this role or this configuration: nobody else does.

        The leader waits for it: it counts us, or lets us in, only as far as we have flushed.
        """
        log = self.log
        if self._partition.settings.flush_before_ack and log.flushed_offset < log.log_end_offset:
            self._flushes.request(log)

    # --- growing ---------------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """Where a follower goes on.

        The leader's log may start inside a batch. An empty log that waits for this batch begins at
        the batch's base, but asks from the leader's start on: below it the leader has nothing.
        """
        end = self.log.log_end_offset
        is_empty = self.log.log_start_offset == end
        return max(end, self._leader_start_offset) if is_empty else end

    @property
    def start_offset(self) -> int:
        """There is nothing below here, also after a crash."""
        if self._saved_start is not None:
            return self._saved_start
        log = self.log
        is_empty = log.log_start_offset == log.log_end_offset
        return self.fetch_offset if is_empty else log.log_start_offset

    def append(self, batches: Buffer, *, high_watermark: int, now_ms: int) -> int:
        """Append the leader's batches, checked but unchanged; returns how many were whole.

        A batch that the fetch limit cut off is left for the next fetch.
        """
        if self.is_being_cut:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its log is being cut")
        partition, log = self._partition, self.log
        view = memoryview(batches)
        found = list(iter_headers(view))
        if found:
            check_batches(
                view,
                found,
                end_offset=log.log_end_offset,
                last_epoch=log.epochs.latest,
                leader_epoch=partition.leader_epoch,
            )
            last_position, last = found[-1]
            end = last_position + last.size_bytes
            if partition.is_internal or _are_of_brokers(found):
                partition.room.take_for_own(end)
            else:
                partition.room.take_for_copies(end)
            headers = [header for _, header in found]
            log.append((view[:end],), headers, now_ms=now_ms)
            partition.as_leader.copied(headers)
            if partition.holds is not None or log.producers.first_veiled_offset >= 0:
                partition.fold_holds(view, found)
            # The leader waits for the flush; we fetch on meanwhile.
            waits = partition.settings.flush_before_ack
            self._flushes.appended(log, end, ack_waits=waits)
        self._hear_mark(min(high_watermark, log.log_end_offset))
        # Nobody else asks a follower: it would keep every transaction that has ended for good.
        log.producers.stable_offset(partition.high_watermark)
        return len(found)

    def _hear_mark(self, told: int) -> None:
        """A new leader may say less than we know, until its own followers have fetched."""
        partition = self._partition
        if told < partition.high_watermark:
            return
        is_news = told > partition.high_watermark or not self.knows_mark
        partition.high_watermark = told
        self.knows_mark = True
        if is_news:
            for watcher in partition.consumer_watchers:
                watcher.wake()

    def follow_start(self, leader_start: int) -> bool:
        """The leader has deleted what is below its start; whether that is news here.

        Only what is committed here: the answer may be about a log that ours does not agree with.
        """
        partition = self._partition
        start = min(leader_start, partition.high_watermark)
        if self.is_being_cut or start <= self.log.log_start_offset:
            return False
        self._saved_start = self.start_offset
        self.log.advance_start(start)
        partition.durable_offset = max(partition.durable_offset, start)
        return True

    def start_was_saved(self, start: int) -> None:
        """A checkpoint has a start that the leader has told; the log may start higher by now."""
        self._saved_start = None if self.log.log_start_offset == start else start

    # --- cuts ------------------------------------------------------------------------------------

    def try_find_begin(self, batches: Buffer) -> int | None:
        """Where an empty log must restart that starts inside the leader's first batch."""
        end = self.log.log_end_offset
        if self.log.log_start_offset < end:
            return None
        for _, first in iter_headers(memoryview(batches)):
            return first.base_offset if first.base_offset < end else None
        return None

    def common_end(self, epoch: int, end_offset: int) -> int:
        """Where our log stops to be the leader's: by epochs, never by the watermark (KIP-279).

        `epoch` is the leader's largest epoch up to ours, and ended there at `end_offset`. If it
        ended earlier here, or is unknown here, our own end of it is the last common point. If all
        our epochs are newer, that is the start of the oldest.
        """
        _, own_end = self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)
        return max(0, min(end_offset, own_end)) if own_end >= 0 else self.log.log_start_offset

    def committed_offset(self) -> int:
        """Everything below was committed and is durable here: cutting it is a loss (I13)."""
        return min(self._partition.high_watermark, self.log.flushed_offset)

    def plan_truncation(self, epoch: int, end_offset: int) -> LogCut | None:
        """Drop the tail that the leader does not have; None if there is none."""
        cut = self.log.plan_truncation(self.common_end(epoch, end_offset))
        if cut is None:
            self._adopt_end()
        return cut

    def leader_starts_at(self, offset: int) -> None:
        """The leader has nothing below `offset`, where our log ends."""
        self._leader_start_offset = offset

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
        partition = self._partition
        start, end = self.log.log_start_offset, self.log.log_end_offset
        # Also where nothing was cut: an epoch in which we led but wrote nothing must go. The leader
        # does not know that epoch and would report a divergence forever.
        self.log.epochs.truncate_from_end(end)
        partition.high_watermark = min(max(partition.high_watermark, start), end)
        partition.durable_offset = min(max(partition.durable_offset, start), end)
        if partition.holds is not None:
            partition.holds.was_cut()


def _are_of_brokers(found: Sequence[tuple[int, BatchHeader]]) -> bool:
    """Ends of transactions, and holds that move or end.

    Leaders write them also when they refuse records, and free room only when followers have them.
    """
    return _is_of_broker(found[0][1]) and all(_is_of_broker(header) for _, header in found)


def _is_of_broker(header: BatchHeader) -> bool:
    return header.is_control or is_ours(header)
