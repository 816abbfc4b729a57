"""Hosts the shards of one coordinator: loads them, runs requests on them, answers when it is safe.

Theory of operation. The broker that leads a partition of the internal topic coordinates everything
that hashes to it. `lead` starts to load the partition: its log is replayed into a fresh shard, and
until that is done requests are refused with COORDINATOR_LOAD_IN_PROGRESS. A load that fails is
tried again after a growing pause, for as long as this broker leads the partition: a coordinator
with missing state is worse than none, and a fault of the disk may pass. `resign` drops the shard
and refuses its waiting requests with NOT_COORDINATOR, so that clients look for the new coordinator.

`write` runs one operation on the shard and replays its records at once, so that the next operation
sees them. The records also go into the partition's *open batch*. At the end of the turn of the loop
each open batch is appended, and its answers leave once acks=all holds for it (ADR 0008). So the
commits that many clients send in one turn cost one append and one wait. The log has the order of
the operations, because a partition has one open batch, which takes all records of an operation or
none.

An answer leaves only when everything that the shard knew when it made the answer is committed,
whether or not the operation itself wrote something. Otherwise a client could see state that is then
lost (I26, I28). While a batch is open, every answer waits with it.

Until the turn ends a shard is therefore ahead of its log. If the append fails, all requests that
wait with the batch are refused, and the shard is dropped and reloaded from the log. Reloads hit
every client of the partition, so three rules keep them rare:

- Refusals that can be foreseen (not the leader, too few replicas in sync) are checked before a
  batch is opened.
- Records that do not fit into a shared batch are appended before the shard replays them.
- After a failed append, all records are appended before they are replayed, until one append
  succeeds.

Deadlines that passed are due again after a reload, and what they write may be refused again. So
they wait a second then, and longer each time, unless an append succeeds before.

Where the append comes first, its failure is reported to the caller alone. The exception is a result
that also answers parked requests: the shard has already forgotten them, so it is reloaded.

Where its partition may not act, another broker may coordinate: requests are refused with
NOT_COORDINATOR, and deadlines wait. A new leader that is silent for a moment refuses as one that
loads: nobody else would answer. Answers that wait for their records are held by the partition.

Everything runs on the event loop and nothing suspends, so shards need no locks. Records that are
replayed but not committed can be lost with the leadership; the shard goes with them.

An operation in a producer's transaction has a batch of its own, which counts when the producer's
marker comes. *Effects* of an operation (markers to be written elsewhere) are handed to `carry_out`
when its records are committed, however long that takes.

An operation refuses by raising KafkaError, at once. A later failure reaches the caller as the
response that its `refuse` function makes of the error code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, NoReturn, TypeVar, final

from tidemill.coordinators.runtime.committed_answers import (
    CarryOut,
    CommittedAnswers,
    refuse_replies,
)
from tidemill.coordinators.runtime.hosted_shard import HostedShard
from tidemill.coordinators.runtime.open_batch import OpenBatch, build_own_batch, record_bytes
from tidemill.coordinators.runtime.partition_writer import (
    ACKS_ALL,
    Marker,
    PartitionWriter,
    coordinator_error,
)
from tidemill.coordinators.runtime.shard import Now, Result, Shard
from tidemill.coordinators.runtime.shard_loader import ShardLoader
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.core.logs import RateLimit
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import Delta, MetadataImage, difference
from tidemill.storage.files.disk import Disk

__all__ = ["CoordinatorRuntime"]

log = logging.getLogger(__name__)

NO_LEASE_PAUSE_MS: Final = 500
"""Until deadlines that passed while the partition could not act are looked at again."""

APPEND_PAUSE_MS: Final = 1_000
"""After a failed append, until deadlines of the shard that was loaded again are looked at."""
APPEND_PAUSE_MS_MAX: Final = 10_000
"""The same after several in a row: each is twice as long, and each costs a load."""

S = TypeVar("S", bound=Shard)
R = TypeVar("R")


@final
class CoordinatorRuntime(Generic[S]):
    """Loads, runs and answers for the shards of the partitions that this broker leads."""

    def __init__(
        self,
        name: str,
        make_shard: Callable[[MetadataImage], S],
        *,
        clock: Clock,
        timers: LoopTimers,
        disk: Disk,
        image: Callable[[], MetadataImage],
        commit_timeout_s: float,
        carry_out: CarryOut = lambda _index, _epoch, _effects: None,
    ) -> None:
        """`carry_out` is called with effects whose records are committed."""
        self._name = name
        self._make_shard = make_shard
        self._clock = clock
        self._timers = timers
        self._image = image
        self.answers = CommittedAnswers(
            timers, commit_timeout_s=commit_timeout_s, carry_out=carry_out
        )
        self._hosted: dict[int, HostedShard[S]] = {}
        """By partition number; bounded by the partitions of the topic."""
        self._loader = ShardLoader(
            name,
            clock=clock,
            timers=timers,
            disk=disk,
            is_hosted=self._is_hosted,
            loaded=self._start_serving,
            load_again=self._load_again,
        )
        self._log = RateLimit()
        """Failed appends: at most one log line per partition and minute."""
        self._opened: list[HostedShard[S]] = []
        """Shards that opened a batch in this turn; some may have appended it already."""
        self._written: list[tuple[HostedShard[S], OpenBatch, int]] = []
        """Batches appended in this turn, with the offset behind them."""
        self._turn_now = Now(0, 0)
        """When the first batch of this turn was opened, or a deadline of the turn passed since."""

    # --- ownership -------------------------------------------------------------------------------

    def lead(self, index: int, partition: PartitionWriter) -> None:
        """This broker leads the partition in its current epoch: load it unless it is hosted."""
        hosted = self._hosted.get(index)
        if hosted is not None:
            if hosted.partition is partition and hosted.epoch == partition.leader_epoch:
                return
            self.resign(index)
        self._start_load(index, partition)

    def resign(self, index: int) -> None:
        """This broker no longer coordinates the partition."""
        hosted = self._hosted.pop(index, None)
        if hosted is None:
            return
        if hosted.timer is not None:
            hosted.timer[1].cancel()
        batch, hosted.open_batch = hosted.open_batch, None
        if batch is not None:
            refuse_replies(batch.replies, ErrorCode.NOT_COORDINATOR)
        for parked in hosted.shard.resign():
            parked.refuse(ErrorCode.NOT_COORDINATOR)

    def shards(self) -> Iterator[S]:
        """All loaded shards."""
        return (hosted.shard for hosted in self._hosted.values() if hosted.is_loaded)

    def epoch_of(self, index: int) -> int | None:
        """The leader epoch in which this broker coordinates the partition; None: it does not."""
        hosted = self._hosted.get(index)
        return None if hosted is None else hosted.epoch

    @property
    def is_loading(self) -> bool:
        return any(not hosted.is_loaded for hosted in self._hosted.values())

    # --- loading ---------------------------------------------------------------------------------

    def _start_load(
        self,
        index: int,
        partition: PartitionWriter,
        *,
        append_failures: int = 0,
        failures: int = 0,
    ) -> None:
        """Replace what is hosted; `failures`: loads that failed, one after the other."""
        image = self._image()
        hosted = HostedShard(index, partition, self._make_shard(image))
        hosted.append_failures = append_failures
        hosted.load_failures = failures
        self._hosted[index] = hosted
        if partition.log.log_start_offset == partition.log.log_end_offset:
            self._start_serving(hosted, image)
        else:
            self._loader.add(hosted, image)

    async def run(self) -> None:
        """Load partitions one after the other, until cancelled; raises if the runtime is broken."""
        await self._loader.run()

    def _load_again(self, hosted: HostedShard[S], failures: int) -> None:
        self._start_load(
            hosted.index,
            hosted.partition,
            append_failures=hosted.append_failures,
            failures=failures,
        )

    def _is_hosted(self, hosted: HostedShard[S]) -> bool:
        return self._hosted.get(hosted.index) is hosted

    def _start_serving(self, hosted: HostedShard[S], image: MetadataImage) -> None:
        """The shard has replayed the whole log: serve requests, from the newest image on."""
        hosted.appended_offset = hosted.partition.log.log_end_offset
        hosted.is_loaded = True
        if hosted.append_failures:
            hosted.expires_from_ms = self._fresh_now().monotonic_ms + _pause_ms_after(
                hosted.append_failures
            )
        hosted.shard.loaded(self._now())
        if self._image() is not image:
            self._change_metadata(hosted, difference(image, self._image()))
        self._maybe_schedule_expiry(hosted)

    def _reload(self, hosted: HostedShard[S]) -> None:
        """The shard holds state that could not be appended: load it again from the log."""
        if self._is_hosted(hosted):
            self.resign(hosted.index)
            failures = hosted.append_failures + 1
            self._start_load(hosted.index, hosted.partition, append_failures=failures)

    # --- requests --------------------------------------------------------------------------------

    def write(
        self,
        index: int,
        operation: Callable[[S, Now], Result[R]],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Run an operation that may change the shard; KafkaError if it is refused at once."""
        hosted = self._find(index)
        now = self._now()
        answer = self._commit(hosted, operation(hosted.shard, now), refuse, now)
        if hosted.open_batch is None:
            self._schedule_expiry(hosted)
        return answer

    def read(
        self,
        index: int,
        operation: Callable[[S, Now], R],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Run an operation that changes nothing; its answer shows only committed state."""
        hosted = self._find(index)
        result = Result(operation(hosted.shard, self._now()))
        return self.answers.answer(hosted, result, refuse)

    def metadata_changed(self, delta: Delta) -> None:
        """Tell every loaded shard; one that is still loading catches up when it is loaded."""
        for hosted in list(self._hosted.values()):
            if hosted.is_loaded:
                self._change_metadata(hosted, delta)
                self._maybe_schedule_expiry(hosted)

    def tell_shards(self, tell: Callable[[S], None]) -> None:
        """Call `tell` with every shard, also while it loads; it may change the next deadline."""
        for hosted in list(self._hosted.values()):
            tell(hosted.shard)
            if hosted.is_loaded:
                self._schedule_expiry(hosted)

    def _find(self, index: int) -> HostedShard[S]:
        hosted = self._hosted.get(index)
        if hosted is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if hosted.partition.is_silent:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        # Before it is asked whether it has loaded: a heartbeat that meets a load is no error.
        if not hosted.partition.may_act:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not hosted.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return hosted

    def _now(self) -> Now:
        """The time of an operation; all operations while a turn's batches are open share one."""
        return self._turn_now if self._opened else self._fresh_now()

    def _fresh_now(self) -> Now:
        return Now(int(self._clock.monotonic() * 1000), self._clock.wall_ms())

    # --- committing ------------------------------------------------------------------------------

    def _commit(
        self,
        hosted: HostedShard[S],
        result: Result[R],
        refuse: Callable[[ErrorCode], R],
        now: Now,
    ) -> R | Deferred[R]:
        if result.records:
            self._replay_and_log(hosted, result, now)
        if result.effects:
            self.answers.plan_effects(hosted, result.effects)
        return self.answers.answer(hosted, result, refuse)

    def _replay_and_log(self, hosted: HostedShard[S], result: Result[Any], now: Now) -> None:
        """Replay the records, and put them into the open batch or the log: all of them or none."""
        records, producer = result.records, result.producer
        size_bytes = record_bytes(records)
        try:
            batch = None
            if producer is None:
                batch = self._try_open_batch(hosted, size_bytes, now)
            elif hosted.open_batch is not None:
                # A batch is of one transaction or of none.
                self._append_open_batch(hosted, hosted.open_batch)
            if batch is None:
                alone = build_own_batch(records, producer, now.wall_ms)
                appended = hosted.partition.as_leader.append_own(alone, now_ms=now.wall_ms)
                hosted.appended_alone(appended.next_offset)
        except (KafkaError, StorageFault) as error:
            self._refuse_result(hosted, result, error)
        try:
            if producer is None:
                for key, value in records:
                    hosted.shard.replay(key, value)
            else:
                for key, value in records:
                    hosted.shard.replay_pending(key, value, producer)
        except BaseException:
            self._reload(hosted)
            raise
        if batch is not None:
            batch.add(records, size_bytes)

    def _try_open_batch(
        self, hosted: HostedShard[S], size_bytes: int, now: Now
    ) -> OpenBatch | None:
        """The open batch for records of this size; None if they must be appended at once."""
        batch = hosted.open_batch
        if batch is not None:
            if batch.has_room(size_bytes):
                return batch
            self._append_open_batch(hosted, batch)
        hosted.partition.check_writable(ACKS_ALL)
        message_bytes_max = hosted.partition.settings.policy.max_message_bytes
        batch = OpenBatch(message_bytes_max, now.wall_ms)
        if hosted.append_failures or not batch.has_room(size_bytes):
            return None
        hosted.open_batch = batch
        if not self._opened:
            self._turn_now = now
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._opened.append(hosted)
        return batch

    def _refuse_result(
        self, hosted: HostedShard[S], result: Result[Any], error: KafkaError | StorageFault
    ) -> NoReturn:
        code = coordinator_error(error)
        refuse_replies(result.replies, code)
        if result.replies:
            self._reload(hosted)
        raise KafkaError(code, str(error)) from error

    # --- open batches ----------------------------------------------------------------------------

    def _end_turn(self) -> None:
        """Append all open batches, then let their answers leave."""
        opened, self._opened = self._opened, []
        for hosted in opened:
            if hosted.open_batch is not None:
                self._end_open_batch(hosted, hosted.open_batch)
        written, self._written = self._written, []
        for hosted, batch, offset in written:
            if batch.effects:
                self.answers.carry_out_when_committed(hosted, batch.effects, offset)
            self.answers.answer_when_committed(hosted, batch.replies, offset)
        for hosted in opened:
            self._maybe_schedule_expiry(hosted)

    def _end_open_batch(self, hosted: HostedShard[S], batch: OpenBatch) -> None:
        try:
            self._append_open_batch(hosted, batch)
        except (KafkaError, StorageFault) as error:
            self._note_failure(hosted, error)
        except Exception as broken:  # noqa: BLE001 - no caller to tell: `run` raises it
            self._loader.fail(broken)

    def _append_open_batch(self, hosted: HostedShard[S], batch: OpenBatch) -> None:
        """Append the open batch; if the log refuses it, refuse its replies and raise.

        Its answers leave at the end of the turn, not here: an answer may bring a next request.
        """
        hosted.open_batch = None
        try:
            appended = hosted.partition.as_leader.append_own(batch.build(), now_ms=batch.now_ms)
        except Exception as error:
            self._reload(hosted)
            refuse_replies(batch.replies, coordinator_error(error))
            raise
        hosted.appended_offset = appended.next_offset
        self._written.append((hosted, batch, appended.next_offset))

    # --- transactions ----------------------------------------------------------------------------

    def append_marker(self, index: int, marker: Marker) -> int:
        """End a producer's transaction in the partition; the offset behind the marker.

        KafkaError or StorageFault: it is not ended here. The marker comes behind everything that
        the shard has replayed, as for a broker that loads the log.
        """
        hosted = self._find(index)
        if hosted.open_batch is not None:
            self._append_open_batch(hosted, hosted.open_batch)
        appended = hosted.partition.as_leader.append_marker(
            *marker.producer,
            is_commit=marker.is_commit,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=self._clock.wall_ms(),
            is_bumped=marker.is_bumped,
        )
        hosted.appended_offset = max(hosted.appended_offset, appended.next_offset)
        if not appended.duplicate:
            hosted.shard.replay_marker(marker.producer, is_commit=marker.is_commit)
        return appended.next_offset

    # --- time and metadata -----------------------------------------------------------------------

    def _maybe_schedule_expiry(self, hosted: HostedShard[S]) -> None:
        """After work that may have dropped the shard: a dropped one has no deadlines."""
        if self._is_hosted(hosted):
            self._schedule_expiry(hosted)

    def _schedule_expiry(self, hosted: HostedShard[S]) -> None:
        """Set the timer for the shard's next deadline."""
        next_ms = hosted.shard.next_deadline_ms()
        if next_ms is None:
            return
        next_ms = max(next_ms, hosted.expires_from_ms)
        if hosted.timer is not None and hosted.timer[0] <= next_ms:
            return
        if hosted.timer is not None:
            hosted.timer[1].cancel()
        delay_s = max(0.0, next_ms / 1000 - self._clock.monotonic())
        timer = self._timers.add_exactly_after(delay_s, lambda: self._expire(hosted))
        hosted.timer = next_ms, timer

    def _expire(self, hosted: HostedShard[S]) -> None:
        hosted.timer = None
        if not hosted.partition.may_act:
            self._expire_later(hosted)
            return
        # Fresh: by the older time of an open batch, the deadline might not have passed yet.
        now = self._turn_now = self._fresh_now()
        self._run_in_background(hosted, lambda: hosted.shard.expire(now), now)
        self._maybe_schedule_expiry(hosted)

    def _expire_later(self, hosted: HostedShard[S]) -> None:
        """Members are not expired by a broker that may have a successor."""
        due_ms = int(self._clock.monotonic() * 1000) + NO_LEASE_PAUSE_MS
        timer = self._timers.add_after(NO_LEASE_PAUSE_MS / 1000, lambda: self._expire(hosted))
        hosted.timer = due_ms, timer

    def _change_metadata(self, hosted: HostedShard[S], delta: Delta) -> None:
        now = self._now()
        self._run_in_background(hosted, lambda: hosted.shard.metadata_changed(delta, now), now)

    def _run_in_background(
        self, hosted: HostedShard[S], operation: Callable[[], Result[None]], now: Now
    ) -> None:
        """Run work that no client asked for; if it cannot be appended, the shard is reloaded."""
        try:
            self._commit(hosted, operation(), lambda _code: None, now)
        except KafkaError as error:
            self._note_failure(hosted, error)
            if self._is_hosted(hosted):
                self._reload(hosted)

    def _note_failure(self, hosted: HostedShard[S], error: KafkaError | StorageFault) -> None:
        """Log it, unless the partition had a line lately: a disk stays full while clients retry."""
        name = f"{self._name}-{hosted.index}"
        if self._log.allows(name, self._clock.monotonic()):
            log.warning("%s: %s", name, error)


def _pause_ms_after(failures: int) -> int:
    return min(APPEND_PAUSE_MS << min(failures - 1, 10), APPEND_PAUSE_MS_MAX)
