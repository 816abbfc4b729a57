"""One partition on this broker: its log, its role, its marks, and the requests that wait for them.

HOT PATH: `check_writable` and `advance_marks` run per batch, `read` per partition fetched.

Theory of operation. The role comes from the metadata image alone: when the image changes, the
replica manager calls `become_leader`, `become_follower` or `resign`, and nothing else changes the
role. A leader validates batches, assigns offsets and appends (`leader_log.py`). Each append, flush
and follower fetch may move the two marks, and only a mark that moves releases an acknowledgement
(R14). A follower appends what the leader sends, byte for byte (`follower_log.py`).

    high watermark   every replica that counts as in sync has appended everything below
    durable offset   every one has flushed everything below

    log_start_offset <= durable_offset <= high_watermark <= log_end_offset

Consumers read below the first; both never go back on a leader. `in_sync.py` says who counts.

A leader without a lease may have a successor: it neither appends nor reads for clients, and its
marks stand still, so no acknowledgement leaves (I8, I15), unless its followers vouch for it. In
return a new leader is silent in the same way for a moment (`mandate.py`). Both still serve
followers: they check its epoch.

All methods run on the event loop and none suspends, so a check still holds when its act runs (R9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from tidemill.core.errors import ErrorCode, KafkaError, invariant
from tidemill.core.ids import NO_LEADER, TopicId, TopicPartition
from tidemill.core.min_isr import effective_min_isr
from tidemill.core.owner_lease import ALWAYS, OwnerLease
from tidemill.metadata.image.isr_proposal import IsrProposal
from tidemill.metadata.image.metadata_image import INTERNAL_TOPICS, PartitionImage
from tidemill.replication.flushing.flush_requests import FlushRequests
from tidemill.replication.follower_log import FollowerLog
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.replication.isr import UNKNOWN_OFFSET, JoinBar
from tidemill.replication.leader_log import ACKS_ALL, LeaderLog
from tidemill.replication.led_replicas import BrokerEpochs, LedReplicas
from tidemill.replication.mandate import Mandate
from tidemill.replication.partition_settings import PartitionSettings
from tidemill.replication.refused_batches import RefusedTotal
from tidemill.replication.waiting.follower_watches import FollowerWatches
from tidemill.replication.waiting.waiters import Watcher
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.log.interface import LogSlice, PartitionLog
from tidemill.wire.batch import BatchHeader

__all__ = ["Partition"]

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1


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
        lease: OwnerLease = ALWAYS,
        epochs: BrokerEpochs | None = None,
        boottime: Callable[[], float] | None = None,
        hold_host: HoldHost | None = None,
        room: DiskRoom | None = None,
        refused_total: RefusedTotal | None = None,
    ) -> None:
        """`boottime`: only in a cluster whose followers vouch for their leaders.

        Without a `hold_host` nothing is held here: a client that asks for it is refused.
        """
        self.name = name
        self.topic_id = topic_id
        self.log = log
        self.is_internal = name.topic in INTERNAL_TOPICS
        self.room = room or DiskRoom()
        """On the disk of the log; without one it has no bound."""
        self.settings = settings
        self.image: PartitionImage | None = None
        self.leader_epoch = NO_EPOCH
        self.is_leader = False
        self.offline = False
        """The log directory failed: every request gets KAFKA_STORAGE_ERROR."""
        self.high_watermark = max(high_watermark, log.log_start_offset)
        """Every in-sync replica has appended everything below; never goes back on a leader (I9)."""
        self.durable_offset = log.log_start_offset
        """Every in-sync replica has flushed everything below; at most the high watermark."""
        self.epoch_start_offset = 0
        """The log end when this broker became leader: everything below is of an older epoch."""
        self.led: LedReplicas | None = None
        """What we know of the other replicas in the leader epoch in which we lead, or led last."""
        self.as_leader = LeaderLog(self, flushes, refused_total)
        self.as_follower = FollowerLog(self, flushes)
        self.mandate = Mandate(lease, boottime)
        self.broker_id = broker_id
        self._epochs = epochs or BrokerEpochs()
        self.isr: tuple[int, ...] = ()
        self.effective_in_sync_min = 1
        """The configured minimum, capped at the number of replicas."""
        self.marks_are_held = False
        """The marks could not move because we may not act: somebody must look again."""
        self.candidate_came: Callable[[], None] | None = None
        """Called when a follower has caught up and may join the in-sync set."""
        self._alone = False
        """No other replica is in sync or needs to be: our own log decides both marks."""
        self.consumer_watchers: dict[Watcher, None] = {}
        """Parked fetches of consumers, woken when the high watermark moves."""
        self.follower_watches = FollowerWatches()
        """Told when the log end, a mark, the log start or the role is another one."""
        self._hold_host = hold_host
        self.holds: PartitionHolds | None = None
        """What is held; None as long as the log has had no veiled batch."""
        if hold_host is not None and log.producers.first_veiled_offset >= 0:
            self.find_holds()

    # --- role ------------------------------------------------------------------------------------

    def become_leader(self, image: PartitionImage, *, now: float) -> None:
        """Lead under `image.leader_epoch`; if we already do, only adopt what else has changed."""
        led = self.led
        is_new_epoch = led is None or image.leader_epoch != self.leader_epoch
        if led is None or is_new_epoch:
            self._start_epoch(image.leader_epoch)
            self.epoch_start_offset = self.log.log_end_offset
            self.as_leader.epoch_began()
            self.log.epochs.assign(image.leader_epoch, self.epoch_start_offset)
            self.led = LedReplicas(self.broker_id, image, self._epochs, now=now)
            self.mandate.epoch_began(image.leader_epoch)
            self._wake_everyone()
        else:
            led.follow(image, now=now)
        self.is_leader = True
        if self.holds is not None:
            self.holds.leads(is_new_epoch=is_new_epoch)
        self.image = image
        self._in_sync_changed()
        self.maybe_advance_marks()

    def become_follower(self, image: PartitionImage) -> None:
        """Follow `image.leader`; waiting requests are refused, so that clients find the leader."""
        self._start_epoch(image.leader_epoch)
        self.image = image
        self.isr = image.isr
        self.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.as_follower.flush_old()

    def resign(self, code: ErrorCode) -> None:
        """Stop serving: another leads, the topic was deleted, or the log directory failed."""
        self.led = None
        self.step_back(code)

    def step_back(self, code: ErrorCode) -> None:
        """Stop leading, perhaps only until the controller has let this broker in again.

        In the same leader epoch, a proposal that is in doubt can still be made.
        """
        self.is_leader = self.marks_are_held = False
        self.as_leader.fail_waiters(code)
        self._wake_everyone()

    def go_offline(self) -> None:
        self.offline = True
        self.resign(ErrorCode.KAFKA_STORAGE_ERROR)

    def _start_epoch(self, epoch: int) -> None:
        invariant(epoch >= self.leader_epoch, f"{self.name}: leader epoch went back")
        if epoch > self.leader_epoch:
            self.as_follower.epoch_began()
        self.leader_epoch = epoch

    def _in_sync_changed(self) -> None:
        """Somebody else is or may be in sync, or must be."""
        led = self.led
        if led is not None:
            led.electable.update(led.in_sync.maximal)
            self.isr = led.in_sync.committed
            self.effective_in_sync_min = self._least_in_sync()
            self._alone = led.in_sync.is_alone(self.effective_in_sync_min)
            self.as_leader.followers_may_have_deleted()

    def _least_in_sync(self) -> int:
        """The minimum, counted without replicas that come or go by a reassignment."""
        image = self.image
        if image is None:
            return 1
        return effective_min_isr(
            self.settings.in_sync_min,
            len(image.replicas),
            len(image.adding),
            len(image.removing),
        )

    def set_settings(self, settings: PartitionSettings) -> None:
        """Adopt changed topic keys; a lower minimum may release waiting requests."""
        self.settings = settings
        self._in_sync_changed()
        self.maybe_advance_marks()
        if not self.is_leader:
            self.as_follower.flush_old()

    # --- leader: the in-sync set -----------------------------------------------------------------

    @property
    def has_followers(self) -> bool:
        """Whether this broker leads, and there are other replicas."""
        return self.is_leader and self.led is not None and bool(self.led.followers)

    def review_marks(self, *, now: float) -> None:
        """Move the marks if we may act again, or a candidate that they wait for has fallen behind.

        To be called twice a second, and before `try_propose_isr`.
        """
        led = self.led
        if led is None or not self.is_leader:
            return
        self.follower_watches.log_starts_at(self.log.log_start_offset)
        led.review_positions(
            leader_end=self.log.log_end_offset,
            waits_for_disks=self.settings.flush_before_ack,
            now=now,
        )
        if led.review_candidates(now):
            self._in_sync_changed()
            self.maybe_advance_marks()
        elif self.marks_are_held:
            self.maybe_advance_marks()

    def try_propose_isr(self, *, now: float) -> IsrProposal | None:
        """What to ask of the controller now, if anything; from now on it may have been made."""
        led = self.led
        if led is None or not self.is_leader or self.mandate.is_silent:
            return None  # whoever joins by a silent leader has not vouched for the one before
        wanted = led.wanted(self._join_bar(), leader_end=self.log.log_end_offset, now=now)
        members = led.in_sync.try_next_proposal(wanted)
        if members is None:
            return None
        led.in_sync.sent(members)
        self._in_sync_changed()
        return IsrProposal(
            topic_id=self.topic_id,
            partition=self.name.partition,
            leader_epoch=self.leader_epoch,
            partition_epoch=led.in_sync.partition_epoch,
            isr=members,
        )

    def _join_bar(self) -> JoinBar:
        start = self.epoch_start_offset
        flushed = max(self.durable_offset, start)
        return JoinBar(
            log_end_offset=max(self.high_watermark, start),
            flushed_offset=flushed if self.settings.flush_before_ack else UNKNOWN_OFFSET,
            log_start_offset=self.as_leader.agreed_start,
            must_keep_up=len(self.isr) < self.effective_in_sync_min,
        )

    def isr_answered(
        self, proposal: IsrProposal, code: ErrorCode, state: PartitionImage | None
    ) -> None:
        """The controller's answer to a proposal; `state` is the partition after the change."""
        led, base = self.led, proposal.partition_epoch
        if led is None or proposal.leader_epoch != self.leader_epoch:
            return
        if code is not ErrorCode.NONE or state is None:
            led.in_sync.refused(base, code)
        elif state.leader_epoch == self.leader_epoch:
            led.in_sync.accepted(base, state.isr, state.partition_epoch)
        self._in_sync_changed()
        self.maybe_advance_marks()

    def isr_unanswered(self, proposal: IsrProposal) -> None:
        """Nobody knows what became of the proposal: it counts as made until that is known."""
        if self.led is not None and proposal.leader_epoch == self.leader_epoch:
            self.led.in_sync.unanswered(proposal.partition_epoch)

    # --- what it may do --------------------------------------------------------------------------

    def check_writable(self, acks: int) -> None:
        """KafkaError if any append with these acks would be refused."""
        self.check_leader()
        if acks == ACKS_ALL and len(self.isr) < self.effective_in_sync_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{len(self.isr)} in sync")

    def check_leader(self) -> None:
        """KafkaError unless this broker leads, and nobody can have taken over from it."""
        if self.offline or not self.is_leader:
            raise self._not_leading()
        if not self.may_act:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no lease, or silent")

    @property
    def may_act(self) -> bool:
        """Whether nobody else acts as the leader here, no successor and no predecessor."""
        mandate = self.mandate
        return not mandate.is_silent and (mandate.has_lease or self.is_vouched)

    @property
    def is_silent(self) -> bool:
        """Whether this broker leads, and waits until no predecessor can act any more."""
        return self.is_leader and self.mandate.is_silent

    @property
    def has_handed_over(self) -> bool:
        """Whether another broker leads and has heard from this one, or nobody else leads."""
        image = self.image
        if image is None or image.leader in (NO_LEADER, self.broker_id):
            return True
        return self.as_follower.knows_mark

    @property
    def is_vouched(self) -> bool:
        """Whether this broker leads, and needs no lease for now: its followers vouch for it."""
        led = self.led
        if led is None or not self.is_leader or self.settings.allows_unclean:
            return False
        return self.mandate.is_vouched(led, self.follower_watches)

    @property
    def is_in_sync_follower(self) -> bool:
        """Whether another broker leads, and counts this one as in sync."""
        image = self.image
        if self.is_leader or image is None or image.leader in (NO_LEADER, self.broker_id):
            return False
        return self.broker_id in image.isr

    @property
    def reading_role(self) -> tuple[int, bool, bool]:
        """As what this broker serves readers: another value, and it may refuse them."""
        return self.leader_epoch, self.is_leader, self.is_in_sync_follower

    def check_readable(self) -> None:
        """KafkaError unless this broker may serve a reader that takes any in-sync replica.

        A follower serves what its leader has confirmed in this epoch, below its own high watermark.
        Otherwise it sends the reader back to the leader (KIP-392).
        """
        if self.offline or not self.is_in_sync_follower:
            self.check_leader()
        elif not self.mandate.has_lease:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no lease")
        elif not self.as_follower.knows_mark:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "its leader has not confirmed a mark")

    def check_serves_followers(self) -> None:
        """KafkaError unless this broker leads; followers check its epoch themselves."""
        if self.offline or not self.is_leader:
            raise self._not_leading()

    def _not_leading(self) -> KafkaError:
        if self.offline:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Compare the client's leader epoch with ours (T36); -1 skips the check."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # --- marks -----------------------------------------------------------------------------------

    def maybe_advance_marks(self) -> None:
        """Move both marks as far as the replicas agree, if this broker may act."""
        if not self.is_leader:
            return
        if not self.may_act:
            self.marks_are_held = True
            return
        self.marks_are_held = False
        self.advance_marks()

    def advance_marks(self) -> None:
        """Move both marks as far as all that count agree; this broker may act, by a check."""
        log, led = self.log, self.led
        if self._alone:
            self._move_marks(log.log_end_offset, log.flushed_offset)
        elif led is not None:
            appended, durable = led.in_sync.agreed(
                log.log_end_offset, log.flushed_offset, led.followers, self.effective_in_sync_min
            )
            self._move_marks(appended, durable)

    def _move_marks(self, appended: int, durable: int) -> None:
        if appended > self.high_watermark:
            self.high_watermark = appended
            self.as_leader.high_watermark_moved(appended)
            if self.consumer_watchers:
                for watcher in self.consumer_watchers:
                    watcher.wake()
            self.follower_watches.mark_moved()
        durable = min(durable, self.high_watermark)
        if durable > self.durable_offset:
            self.durable_offset = durable
            self.as_leader.durable_offset_moved(durable)

    def follower_fetched(
        self,
        broker_id: int,
        *,
        fetch_offset: int,
        flushed_offset: int,
        now: float,
        log_start_offset: int = 0,
    ) -> None:
        """A follower's fetch is its acknowledgement of everything before `fetch_offset`."""
        led = self.led
        if led is None or not self.is_leader:
            raise self._not_leading()
        is_candidate = led.fetched(
            broker_id,
            fetch_offset=fetch_offset,
            flushed_offset=flushed_offset,
            log_start_offset=log_start_offset,
            leader_end=self.log.log_end_offset,
            now=now,
        )
        self.as_leader.followers_may_have_deleted()
        self.mandate.was_fetched_by(broker_id)
        if is_candidate:
            self._in_sync_changed()
            if self.candidate_came is not None:
                self.candidate_came()
        self.maybe_advance_marks()

    def follower_flushed(self, broker_id: int, flushed_offset: int) -> None:
        """A follower has flushed everything below, as far as it has fetched in this epoch."""
        led = self.led
        if led is not None and self.is_leader and led.flushed(broker_id, flushed_offset):
            self.maybe_advance_marks()

    def follower_restarted(self, broker_id: int) -> None:
        """Forget a broker's position when it registers or leaves: it may have lost data (I14)."""
        # Most partitions have no replica there: one broker that moves must not cost a look at all.
        if self.led is not None and broker_id in self.led.followers:
            self.led.restarted(broker_id)
            self._in_sync_changed()
            self.maybe_advance_marks()

    def _wake_everyone(self) -> None:
        for watcher in self.consumer_watchers:
            watcher.wake()
        self.follower_watches.role_changed()

    # --- holds -----------------------------------------------------------------------------------

    def find_holds(self) -> PartitionHolds:
        """What is held here, from now on also if that is nothing; KafkaError."""
        if self.holds is None:
            if self._hold_host is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, "this broker holds no records")
            self.holds = PartitionHolds(self, self._hold_host)
        return self.holds

    def fold_holds(self, batches: memoryview, found: list[tuple[int, BatchHeader]]) -> None:
        """The leader's batches were appended: what they say about holds."""
        holds = self.holds
        if holds is None:
            if self._hold_host is not None:
                self.find_holds()  # reads the log, and with it these batches
            return
        holds.appended_many(batches, found)

    def droppable_offset(self) -> int:
        """Retention may drop what is below: it is committed, and nothing of it is held."""
        floor = None if self.holds is None else self.holds.floor()
        return self.high_watermark if floor is None else min(self.high_watermark, floor)

    # --- reading ---------------------------------------------------------------------------------

    def last_stable_offset(self) -> int:
        """How far read_committed may read: every transaction below has ended for good (T34)."""
        stable = self.log.producers.stable_offset(self.high_watermark)
        return max(stable, self.log.log_start_offset)

    def read(self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool) -> LogSlice:
        """Whole batches below `end_offset` (a mark for consumers, the log end for followers)."""
        return self.log.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )

    def electable_absent(self) -> list[int]:
        """The followers that are not in sync, and that the controller may elect."""
        led = self.led
        return [] if led is None else sorted(led.others_electable() - {*led.in_sync.maximal})

    def in_sync_readers(self, offset: int) -> list[int]:
        """The followers that are in sync, let in, and known to have what comes at `offset`.

        Nobody while followers only vouch for us: they serve under a lease, and have none either.
        """
        led = self.led
        if led is None or not self.mandate.has_lease:
            return []
        return [
            one
            for one, position in led.followers.items()
            if one in self.isr
            and self._epochs.may_join(one)
            and position.log_start_offset <= offset <= position.log_end_offset
        ]

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

    def try_find_divergence(self, last_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where a reader that has read up to `fetch_offset` in `last_epoch` left our log (KIP-595).

        The largest epoch up to `last_epoch` here, and where it ended; None if the reader has only
        what we have. KafkaError OFFSET_OUT_OF_RANGE if that cannot be said.
        """
        epoch, end_offset = self.end_offset_of_epoch(last_epoch)
        if epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"nobody has led in epoch {last_epoch}")
        if fetch_offset < self.log.log_start_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "before the log start")
        if not self.is_leader and last_epoch > self.log.epochs.latest:
            return None  # the leader's log goes on where ours ends: that epoch begins there
        if epoch == last_epoch and end_offset >= fetch_offset:
            return None
        return epoch, end_offset
