"""Applies what a leader answers to the logs of this broker, partition by partition.

What is wrong with one partition stops that one alone. It rests for a while, the longer the more
often it failed, and the others go on (I13, S23):

| the leader's answer                       | what follows                                     |
|-------------------------------------------|--------------------------------------------------|
| records that must not follow ours         | an alarm; rests 1, 2, 4 ... 30 s                 |
| our disk is full                          | rests 1 s                                        |
| no replica has what comes next            | passes over it (`lost_offsets.py`)               |
| any other error                           | asked again soon                                 |
| another epoch than ours, or out of range  | a cut in a thread; rests until it has ended      |
| a cut below what was committed here        | an alarm; refused if no unclean election allows it |
| log start above ours                      | ours follows, and is checkpointed                |
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from tidemill.core.clock import Clock
from tidemill.core.errors import DiskFull, DiskReserved, ErrorCode, KafkaError, StorageFault
from tidemill.core.logs import RateLimit
from tidemill.core.loop.lifecycle import Supervisor
from tidemill.replication.following import CutVerdict, RefusedCut, judge_cut, rest_s_after
from tidemill.replication.partition import Partition
from tidemill.replication.pulling.log_cutter import LogCutter
from tidemill.replication.pulling.lost_offsets import LostOffsets
from tidemill.storage.log.interface import LogCut
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.wire.generated.fetch import PartitionData

__all__ = ["GO_ON", "UNTIL_RELEASED", "LeaderAnswers"]

log = logging.getLogger(__name__)

GO_ON = 0.0
UNTIL_RELEASED = float("inf")
RETRY_S = 0.1
FULL_DISK_REST_S = 1.0
SAVE_INTERVAL_S = 1.0
EMPTY_BATCH_OFFSETS_MAX = 2**31 - 1


@final
class LeaderAnswers:
    """Appends, cuts and log starts as leaders ask for them, and who has to rest."""

    def __init__(
        self,
        *,
        clock: Clock,
        cutter: LogCutter,
        lost_offsets: LostOffsets,
        supervisor: Supervisor,
        released: Callable[[Partition, float], None],
        start_saved: Callable[[Partition], None] = lambda _partition: None,
        checkpoint: Callable[[], Awaitable[None]] | None = None,
        unclean_epoch: Callable[[Partition], int | None] = lambda _partition: None,
    ) -> None:
        """`released` hears of a cut that has ended, and for how long the partition rests then.

        `checkpoint` makes durable where logs start, and `start_saved` hears of each that it did;
        `unclean_epoch`: see `judge_cut`.
        """
        self._clock = clock
        self._cutter = cutter
        self._lost_offsets = lost_offsets
        self._supervisor = supervisor
        self._released = released
        self._start_saved = start_saved
        self._checkpoint = checkpoint
        self._unclean_epoch = unclean_epoch
        self._failures: dict[Partition, int] = {}
        """In a row; 0 for a full disk. No more entries than there are partitions."""
        self._changing: dict[Partition, None] = {}
        """Partitions whose logs are being cut, or pass over what is lost."""
        self._unsaved: dict[Partition, None] = {}
        """Partitions whose log starts are not in a checkpoint yet."""
        self._is_saving = False
        self._saved_at = clock.monotonic()
        self._save_log = RateLimit()
        """A checkpoint that fails is tried again each second: at most one log line a minute."""

    def role_changed(self, partition: Partition) -> None:
        """What was wrong under another leader or in another epoch does not count any more."""
        self._failures.pop(partition, None)

    def may_ask(self, partition: Partition) -> bool:
        """Whether its log is ours to tell of: not while it is cut, refuses to be, or has holes."""
        return (
            partition not in self._changing
            and partition.as_follower.refused_cut is None
            and partition.as_follower.is_whole
        )

    def apply(
        self, partition: Partition, data: PartitionData, *, is_wanted: Callable[[], bool]
    ) -> float:
        """Apply one partition of an answer; for how long it must not be asked for then.

        `is_wanted`: whether we still follow that leader in that epoch. A cut may wait for its turn.
        """
        if partition in self._changing:
            return UNTIL_RELEASED  # two fetches named it, and the first answer asked for the cut
        try:
            rest_s = self._apply(partition, data, is_wanted)
        except (KafkaError, StorageFault) as error:
            return self._rest_s_after(partition, error)
        if rest_s > GO_ON:
            return rest_s
        self._failures.pop(partition, None)
        # Damage may have been found since it was named: it must not get in sync with a hole (I14).
        return GO_ON if self.may_ask(partition) else UNTIL_RELEASED

    def _apply(
        self, partition: Partition, data: PartitionData, is_wanted: Callable[[], bool]
    ) -> float:
        cut = _try_plan_cut(partition, data)
        if cut is not None:
            if self._allows_cut(partition, cut):
                work = self._cutter.cut(partition.as_follower, cut.plan, is_wanted=is_wanted)
                self._spawn_change(f"cut {partition.name}", partition, work, is_wanted)
            return UNTIL_RELEASED
        lost = _try_find_loss(partition, data)
        if lost is not None:
            work = self._lost_offsets.pass_over(
                partition, lost, leader_epoch=data.lost_epoch, is_wanted=is_wanted
            )
            self._spawn_change(f"pass over {partition.name}", partition, work, is_wanted)
            return UNTIL_RELEASED
        if data.error_code:
            return RETRY_S
        try:
            partition.as_follower.append(
                data.records or b"",
                high_watermark=data.high_watermark,
                now_ms=self._clock.wall_ms(),
            )
        finally:  # what was deleted makes room for what was not appended
            self._follow_start(partition, data.log_start_offset)
        return GO_ON

    def _follow_start(self, partition: Partition, leader_start: int) -> None:
        if partition.as_follower.follow_start(leader_start):
            if self._checkpoint is None:
                partition.as_follower.start_was_saved(partition.log.log_start_offset)
            else:
                self._unsaved[partition] = None

    def _rest_s_after(self, partition: Partition, error: KafkaError | StorageFault) -> float:
        before = self._failures.get(partition)
        if isinstance(error, DiskFull):
            if before is None and not isinstance(error, DiskReserved):
                log.error("replicating %s: %s", partition.name, error)
            self._failures[partition] = before or 0
            return FULL_DISK_REST_S
        self._failures[partition] = failures = (before or 0) + 1
        rest_s = rest_s_after(failures)
        log.error("replicating %s failed, again in %.0f s: %s", partition.name, rest_s, error)
        return rest_s

    def maybe_save_starts(self) -> None:
        """Deleted records must not come back after a crash, should we lead then (I9).

        Retention moves the starts of many logs: a checkpoint covers those of a second. Nobody who
        fetches waits for it: on a slow disk it takes long. A leader hears of what is saved.
        """
        now = self._clock.monotonic()
        is_due = self._unsaved and now - self._saved_at >= SAVE_INTERVAL_S
        if is_due and not self._is_saving and self._checkpoint is not None:
            self._saved_at, self._is_saving = now, True
            self._supervisor.spawn("save log starts", self._save_starts(self._checkpoint))

    async def _save_starts(self, checkpoint: Callable[[], Awaitable[None]]) -> None:
        starts = {one: one.log.log_start_offset for one in self._unsaved}
        try:
            await checkpoint()
        except StorageFault as fault:
            if self._save_log.allows("checkpoint", self._clock.monotonic()):
                log.error("checkpoint failed: %s", fault)
        else:
            for partition, start in starts.items():
                self._start_was_saved(partition, start)
        finally:
            self._is_saving = False

    def _start_was_saved(self, partition: Partition, start: int) -> None:
        if partition.log.log_start_offset == start:
            del self._unsaved[partition]
        partition.as_follower.start_was_saved(start)
        self._start_saved(partition)

    # --- cuts ------------------------------------------------------------------------------------

    def _allows_cut(self, partition: Partition, cut: _AskedCut) -> bool:
        """Whether the cut is made; one that drops committed records raises an alarm (I13)."""
        committed = partition.as_follower.committed_offset()
        verdict = judge_cut(
            cut.offset,
            committed_offset=committed,
            epoch_there=partition.log.epochs.epoch_at(cut.offset),
            unclean_epoch=self._unclean_epoch(partition),
        )
        if verdict is CutVerdict.FINE:
            _log_fine_cut(partition, cut.offset)
            return True
        done = verdict is CutVerdict.LOSES
        log.error(
            "%s: its leader has nothing after offset %d, but %d was committed here: %s",
            partition.name,
            cut.offset,
            committed,
            "cut" if done else "refused, see `tidemill cluster repair`",
        )
        if not done:
            refused = RefusedCut(partition.leader_epoch, cut.offset, committed)
            partition.as_follower.refused_cut = refused
        return done

    # --- changes in threads ----------------------------------------------------------------------

    def _spawn_change(
        self,
        name: str,
        partition: Partition,
        work: Coroutine[Any, Any, None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._changing[partition] = None
        self._supervisor.spawn(name, self._change(partition, work, is_wanted))

    async def _change(
        self,
        partition: Partition,
        work: Coroutine[Any, Any, None],
        is_wanted: Callable[[], bool],
    ) -> None:
        rest_s = GO_ON
        try:
            await work
        except (KafkaError, StorageFault) as error:
            if is_wanted():
                rest_s = self._rest_s_after(partition, error)
        finally:
            del self._changing[partition]
        self._released(partition, rest_s)


def _log_fine_cut(partition: Partition, offset: int) -> None:
    last = partition.log.log_end_offset - 1
    if offset <= last:
        log.info(
            "%s: drops offsets %d to %d, which its leader lacks; none is known as committed",
            partition.name,
            offset,
            last,
        )


@final
@dataclass(frozen=True, slots=True)
class _AskedCut:
    """A cut that follows from the leader's answer."""

    offset: int
    """What is kept ends here."""
    plan: Callable[[], LogCut | None]


def _is_loss(data: PartitionData) -> bool:
    return data.error_code == ErrorCode.CORRUPT_MESSAGE and data.lost_end_offset >= 0


def _try_find_loss(partition: Partition, data: PartitionData) -> DamagedRange | None:
    """What the leader says that no replica has, from our end on."""
    end = partition.log.log_end_offset
    if not _is_loss(data) or data.lost_end_offset <= end:
        return None
    return DamagedRange(end, min(data.lost_end_offset, end + EMPTY_BATCH_OFFSETS_MAX))


def _try_plan_cut(partition: Partition, data: PartitionData) -> _AskedCut | None:
    """The cut that the leader's answer asks for, if any; the next fetch continues after it."""
    follower = partition.as_follower
    end = partition.log.log_end_offset
    if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        start = max(0, data.log_start_offset)
        follower.leader_starts_at(start)
        # What is below its start it has deleted: only what we have from there on is lost.
        return _AskedCut(min(end, start), partial(follower.plan_restart, start))
    if (
        _is_loss(data) and follower.fetch_offset > end
    ):  # an empty log begins where the leader's does
        return _AskedCut(end, partial(follower.plan_restart, follower.fetch_offset))
    if data.error_code:
        return None
    diverging = data.diverging_epoch
    if diverging is not None:
        kept = follower.common_end(diverging.epoch, diverging.end_offset)
        plan = partial(follower.plan_truncation, diverging.epoch, diverging.end_offset)
        return _AskedCut(kept, plan)
    begin = follower.try_find_begin(data.records or b"")
    return None if begin is None else _AskedCut(end, partial(follower.plan_restart, begin))
