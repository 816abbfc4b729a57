"""Delivers holds when they are due, in the partitions that this broker leads.

A timer per partition wakes it at the next due time. What is due is read from the log, written as
one batch of ours and appended; the same append closes the holds. So a hold is released whole or not
at all, and never twice: if the batch is lost, so is the end of its holds, and whoever leads next
releases them. Nothing is released without a lease, or while a client's acks=all would be refused.

Between reading and appending a command may have moved or cancelled a hold: the book is asked again
in the turn of the append.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.errors import DiskFull, ErrorCode, KafkaError, StorageFault
from tidemill.core.logs import RateLimit, shown
from tidemill.core.loop.pacing import Pacer, next_turn
from tidemill.core.loop.timers import LoopTimers, Timer
from tidemill.core.telemetry import Telemetry
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.holds.hold_shelves import Spill
from tidemill.replication.holding.held_batches import make_carried, make_release
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.hold_replay import end_of_loss, replay
from tidemill.replication.holding.partition_holds import PartitionHolds
from tidemill.storage.files.disk import Buffer, Disk
from tidemill.wire import compression
from tidemill.wire.batch import BatchHeader, read_header

__all__ = ["Releaser"]

log = logging.getLogger(__name__)

ACKS_ALL = -1
RETRY_S = 0.5
"""After a refusal: there is no lease, too few replicas are in sync, or the disk is busy."""
FULL_DISK_REST_S = 5.0
"""A release is read and compressed before the disk turns out to be full."""
WAIT_S_MAX = 5.0
"""The wall clock may be set while a timer runs."""
READS_PER_SLICE = 32
LOADED_BYTES_MAX = 16 * 1024 * 1024
"""A release has little of each batch that it is read from, and may need hundreds of them."""
CARRY_INTERVAL_S = 30.0
CARRIED_PER_LOOK = 4_096
"""Holds that are looked up at a time: a partition may have millions."""
LIVE_SHARE_MIN = 4
"""Files that retention would drop stay while a quarter of them or more is held: carrying that for
ever would cost more than the files."""


@final
class Releaser:
    """The loops of one broker that release what is due and rebuild books."""

    def __init__(
        self,
        host: HoldHost,
        disk: Disk,
        *,
        clock: Clock,
        timers: LoopTimers,
        telemetry: Telemetry,
    ) -> None:
        self._host = host
        self._disk = disk
        self._clock = clock
        self._timers = timers
        self._telemetry = telemetry
        self._armed: dict[PartitionHolds, Timer] = {}
        """One timer per partition that holds something and is led here."""
        self._fault_log = RateLimit()
        self._woken = asyncio.Event()
        self._replay_woken = asyncio.Event()
        self._write_woken = asyncio.Event()
        host.wake = self._wake

    def _wake(self) -> None:
        if self._host.to_look_at:
            self._woken.set()
        if self._host.to_write:
            self._write_woken.set()
        if self._host.to_replay or self._host.to_keep:
            self._replay_woken.set()

    # --- replays ---------------------------------------------------------------------------------

    async def run_replays(self) -> None:
        """Rebuild the books that are behind their logs, one after the other, forever."""
        while True:
            await self._replay_woken.wait()
            self._replay_woken.clear()
            await self.replay_wanted()

    async def run_writes(self) -> None:
        """Write files of large books, forever: beside replays, which may take long."""
        while True:
            await self._write_woken.wait()
            self._write_woken.clear()
            await self.write_wanted()

    async def write_wanted(self) -> None:
        while self._host.to_write:
            await self._write(*self._host.to_write.popleft())

    async def replay_wanted(self) -> None:
        """Rebuild all books that are behind now, and keep snapshots that are due."""
        while self._host.to_replay:
            holds = next(iter(self._host.to_replay))
            del self._host.to_replay[holds]
            await self._replay(holds)
            await next_turn()
        while self._host.to_keep:
            holds, _ = self._host.to_keep.popitem()
            await self._keep_snapshot(holds)
            await next_turn()

    async def _write(self, holds: PartitionHolds, book: HoldBook, spill: Spill) -> None:
        if book is not holds.book or holds.partition.log.is_closed:
            return
        try:
            await holds.spills.write(self._disk, book, spill)
        except (KafkaError, StorageFault) as error:
            self._note(holds, error)

    async def _keep_snapshot(self, holds: PartitionHolds) -> None:
        try:
            has_files = await holds.spills.open_files(self._disk)
            if has_files and not holds.partition.log.is_closed:
                await holds.spills.look(self._disk, holds.book, lambda: holds.is_whole)
        except (KafkaError, StorageFault) as error:
            self._note(holds, error)

    async def _replay(self, holds: PartitionHolds) -> None:
        if holds.is_whole or holds.partition.offline or holds.partition.log.is_closed:
            return
        try:
            await replay(holds, self._disk)
        except (KafkaError, StorageFault) as error:
            self._note(holds, error)
            self._timers.add_after(RETRY_S, partial(self._host.replay, holds))

    # --- releases --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Release what is due, forever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self.release_due()

    async def release_due(self) -> None:
        """Release what is due now in the partitions that are to be looked at."""
        while self._host.to_look_at:
            holds = next(iter(self._host.to_look_at))
            del self._host.to_look_at[holds]
            await self._look_at(holds)
            await next_turn()

    async def _look_at(self, holds: PartitionHolds) -> None:
        timer = self._armed.pop(holds, None)
        if timer is not None:
            timer.cancel()
        partition = holds.partition
        if not partition.is_leader or not holds.is_whole or holds not in self._host.partitions:
            return
        due = holds.due()
        if not due:
            self._arm(holds, holds.ms_until_due())
            return
        try:
            await self._release(holds, due)
        except (KafkaError, StorageFault) as error:
            self._note(holds, error)
            rest_s = FULL_DISK_REST_S if isinstance(error, DiskFull) else RETRY_S
            self._arm(holds, int(rest_s * 1000))
            return
        self._host.look_at(holds)

    def _note(self, holds: PartitionHolds, error: KafkaError | StorageFault) -> None:
        expected = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS)
        if isinstance(error, KafkaError) and error.code in expected:
            return
        name = f"{holds.partition.name.topic}-{holds.partition.name.partition}"
        if self._fault_log.allows(name, self._clock.monotonic()):
            log.error("%s: what is held cannot be read or written: %s", name, shown(error))

    def _arm(self, holds: PartitionHolds, wait_ms: int | None) -> None:
        if wait_ms is not None:
            wait_s = min(wait_ms / 1000, WAIT_S_MAX)
            self._armed[holds] = self._timers.add_exactly_after(
                wait_s, partial(self._host.look_at, holds)
            )

    async def _release(self, holds: PartitionHolds, due: Sequence[Hold]) -> None:
        holds.partition.check_writable(ACKS_ALL)
        to_plan = [hold for hold in due if hold.needs_plan]
        if to_plan:
            await self._carry(holds, to_plan)
            return
        seen = holds.changes
        stored, codec = await self._read(holds, due)
        due = [hold for hold, _ in stored]
        now_ms = self._clock.wall_ms()
        build = partial(
            make_release, stored, now_ms=now_ms, wall_ms=self._host.wall_ms(), codec=codec
        )
        if self._append(holds, due, seen, await self._disk.run(build), now_ms):
            self._count_released(holds, due)

    # --- carries ---------------------------------------------------------------------------------

    async def run_carries(self) -> None:
        """Carry holds out of the way of retention and keep snapshots, forever."""
        while True:
            await asyncio.sleep(CARRY_INTERVAL_S)
            self._host.keep_all()
            await self.carry_expired()

    async def carry_expired(self) -> None:
        """Look at every partition that is led here once."""
        for holds in list(self._host.partitions):
            try:
                await self._carry_expired(holds)
            except (KafkaError, StorageFault) as error:
                self._note(holds, error)

    async def _carry_expired(self, holds: PartitionHolds) -> None:
        """Carry what lies in files that are to go, if that is little of them."""
        partition = holds.partition
        if not partition.is_leader or not holds.is_whole or not holds.book.pending:
            return
        find = partial(
            partition.log.expired,
            now_ms=self._clock.wall_ms(),
            end_offset=partition.high_watermark,
        )
        end_offset, size_bytes = await self._disk.run(find)
        if await _is_much_held(holds, end_offset, size_bytes):
            return
        start = 0
        while old := _held_between(holds, start, end_offset):
            start = old[-1].offset + 1
            for some in _in_batches(old, *holds.batch_bounds()):
                partition.check_writable(ACKS_ALL)
                # Others may have ended or moved while those before them were carried.
                still = [hold for hold in some if holds.book.find(hold.ticket) == hold]
                if still:
                    await self._carry(holds, still)
                await next_turn()

    async def _carry(self, holds: PartitionHolds, some: Sequence[Hold]) -> None:
        """Write copies of these holds to the end of the log, those of new schedules with a tick.

        Of the first ones, if not all can be read: the others come when somebody looks again.
        """
        seen = holds.changes
        stored, codec = await self._read(holds, some)
        some = [hold for hold, _ in stored]
        now_ms = self._clock.wall_ms()
        build = partial(
            make_carried,
            stored,
            now_ms=now_ms,
            wall_ms=self._host.wall_ms(),
            stamp_ms=holds.steady_ms(),
            codec=codec,
        )
        if self._append(holds, some, seen, await self._disk.run(build), now_ms):
            self._telemetry.holds_carried += len(some)

    def _append(
        self,
        holds: PartitionHolds,
        some: Sequence[Hold],
        seen: tuple[HoldBook, int],
        batch: bytearray,
        now_ms: int,
    ) -> bool:
        """Append a batch of these holds; False: one of them has changed since it was read.

        After a cut an equal hold may be another record. Whoever called looks again.
        """
        book, changes = seen
        if holds.book is not book or not holds.is_whole:
            return False
        if book.changes != changes and any(book.find(one.ticket) != one for one in some):
            return False
        holds.partition.as_leader.append_ours(batch, now_ms=now_ms)
        return True

    async def _read(
        self, holds: PartitionHolds, some: Sequence[Hold]
    ) -> tuple[list[tuple[Hold, Buffer]], int]:
        """Each hold, in the same order, with the batch that it lies in; and the codec to use.

        Only the first ones, if they lie in so many batches that memory must be spared.
        """
        pacer = Pacer(READS_PER_SLICE)
        batches: list[tuple[BatchHeader, Buffer]] = []
        stored: list[tuple[Hold, Buffer]] = []
        loaded_bytes = 0
        at = -1
        for hold in some:
            if at < 0 or not _lies_in(hold, batches[at][0]):
                at = bisect_right(batches, hold.offset, key=lambda one: one[0].base_offset) - 1
            if at < 0 or not _lies_in(hold, batches[at][0]):
                if loaded_bytes >= LOADED_BYTES_MAX:
                    break
                await pacer.step()
                batch, is_loaded = await self._read_batch(holds, hold.offset)
                loaded_bytes += len(batch) * is_loaded
                at += 1
                batches.insert(at, (read_header(batch), batch))
            stored.append((hold, batches[at][1]))
        policy = holds.partition.settings.policy
        if policy.compression != "producer":
            return stored, compression.CODEC_IDS[policy.compression]
        return stored, read_header(stored[-1][1]).codec

    async def _read_batch(self, holds: PartitionHolds, offset: int) -> tuple[Buffer, bool]:
        """The batch with this offset, and whether it was loaded into memory."""
        log = holds.partition.log
        start = max(offset, log.log_start_offset)  # it may lie within a batch
        try:
            found = log.read(start, max_bytes=1, end_offset=log.log_end_offset)
        except KafkaError as error:
            end_of_loss(log, start, error)
            holds.lost_copies()
            raise
        chunks = found.chunks if found.load is None else await self._disk.run(found.load)
        if not chunks:  # the log was cut while batches before it were read
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"no batch at offset {offset}")
        if read_header(chunks[0]).base_offset > offset:
            holds.lost_copies()
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} was deleted")
        return chunks[0], found.load is not None

    def _count_released(self, holds: PartitionHolds, due: Sequence[Hold]) -> None:
        telemetry = self._telemetry
        telemetry.holds_released += len(due)
        now = {axis: holds.now_ms(axis) for axis in Axis}
        for hold in due:
            telemetry.hold_lateness.observe(max(0, now[hold.axis] - hold.due_ms) / 1000)


def _lies_in(hold: Hold, header: BatchHeader) -> bool:
    return header.base_offset <= hold.offset < header.next_offset


async def _is_much_held(holds: PartitionHolds, end_offset: int, size_bytes: int) -> bool:
    """Whether the files below `end_offset`, of this size, are worth keeping for what is held."""
    held_bytes = 0
    for some in holds.book.bytes_below(end_offset):
        held_bytes += some
        if held_bytes * LIVE_SHARE_MIN >= size_bytes:
            return True
        await next_turn()
    return False


def _held_between(holds: PartitionHolds, start: int, end_offset: int) -> list[Hold]:
    """The first holds whose copies lie in this range."""
    below = takewhile(lambda hold: hold.offset < end_offset, holds.book.held(start))
    return list(islice(below, CARRIED_PER_LOOK))


def _in_batches(holds: Sequence[Hold], count_max: int, bytes_max: int) -> Iterator[list[Hold]]:
    """Split holds into as many as fit one batch each; a batch has at least one."""
    some: list[Hold] = []
    size_bytes = 0
    for hold in holds:
        size_bytes += hold.size_bytes
        if some and (len(some) == count_max or size_bytes > bytes_max):
            yield some
            some, size_bytes = [], hold.size_bytes
        some.append(hold)
    if some:
        yield some
