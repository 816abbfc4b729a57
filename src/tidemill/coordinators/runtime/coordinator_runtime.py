"""Hosts the shards of one coordinator: loads them, runs requests on them, answers when it is safe.

Theory of operation. Whoever leads a partition of the internal topic coordinates what hashes to it.
`lead` begins to load that partition: its log is replayed into a fresh shard, and until that is done
requests are refused with COORDINATOR_LOAD_IN_PROGRESS. `resign` drops the shard; whoever waits for
it is told to look for the new coordinator.

`write` runs one operation on the shard and replays its records at once, so that the next operation
sees them; the records wait in the partition's *open batch*. At the end of the turn of the loop each
open batch is appended, and its answers leave once acks=all holds for it (D8). So the commits of
many clients that come in one turn cost one append and one wait. The order of the log is that of the
operations, since a partition has one open batch, which takes all records of an operation or none.

No answer leaves before everything that the shard knew when it was made is committed, whether it
wrote something itself or not: else it could show what never was (I26, I28). While a batch is open
that means to wait with it.

A shard is therefore ahead of its log until the turn ends. If the append fails, everyone who waits
with the batch is refused, and the shard is dropped and loaded anew from the log, together with all
that it knew too much. That must not become a habit: refusals that can be foreseen are checked
before a batch is opened; records that fill a batch are appended before the shard knows them; and so
is everything that comes after a failure, until an append succeeds. Then a failure costs the caller
alone, unless parked answers were part of the result.

Everything happens on the event loop and nothing suspends, so shards need no locks. What is replayed
but not yet committed can be lost with the leadership, and then it is lost together with the shard.

An operation refuses by raising KafkaError, at once. What fails later reaches the caller as the
response that `refuse` makes of the error code.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, TypeVar, final

from tidemill.coordinators.runtime.hosted_shard import Commit, Hosted, park, refuse_replies
from tidemill.coordinators.runtime.open_batch import OpenBatch, record_bytes
from tidemill.coordinators.runtime.partition_writer import (
    PartitionWriter,
    append_all,
    check_writable,
    meaning_of,
)
from tidemill.coordinators.runtime.shard import Now, Parked, Reply, Result, Shard
from tidemill.coordinators.runtime.shard_loading import replay_log
from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault, TidemillError
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import Delta, MetadataImage, difference
from tidemill.storage.files.disk import Disk
from tidemill.wire.records import build_pair_batch

__all__ = ["CoordinatorRuntime"]

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
R = TypeVar("R")


@final
class CoordinatorRuntime(Generic[S]):
    """See the module's head."""

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
    ) -> None:
        self._name = name
        self._make_shard = make_shard
        self._clock = clock
        self._timers = timers
        self._disk = disk
        self._image = image
        self._commit_timeout_s = commit_timeout_s
        self._hosted: dict[int, Hosted[S]] = {}
        """By partition; at most one for each partition of the topic."""
        self._to_load: deque[tuple[Hosted[S], MetadataImage]] = deque()
        self._wakeup = asyncio.Event()
        self._opened: list[Hosted[S]] = []
        """Who got an open batch in this turn; some may have written it out meanwhile."""
        self._written: list[tuple[Hosted[S], list[Reply], int]] = []
        """Batches that were appended in this turn: their answers, and the offset behind them."""
        self._turn_now = Now(0, 0)
        """When the first of them was opened."""
        self._broken: Exception | None = None

    # --- ownership -------------------------------------------------------------------------------

    def lead(self, index: int, partition: PartitionWriter) -> None:
        """This broker leads the partition, perhaps in a new epoch: load it unless we have it."""
        hosted = self._hosted.get(index)
        if hosted is not None:
            if hosted.partition is partition and hosted.epoch == partition.leader_epoch:
                return
            self.resign(index)
        self._start_load(index, partition)

    def resign(self, index: int) -> None:
        """Another broker coordinates from now on, or nobody does."""
        hosted = self._hosted.pop(index, None)
        if hosted is None:
            return
        if hosted.timer is not None:
            hosted.timer[1].cancel()
        batch, hosted.open_batch = hosted.open_batch, None
        if batch is not None:
            refuse_replies(batch.replies, ErrorCode.NOT_COORDINATOR)
        for parked in hosted.shard.resign():
            parked.answer.resolve(parked.refuse(ErrorCode.NOT_COORDINATOR))

    def shards(self) -> Iterator[S]:
        """Every shard that is loaded."""
        return (hosted.shard for hosted in self._hosted.values() if hosted.is_loaded)

    @property
    def is_loading(self) -> bool:
        return any(not hosted.is_loaded for hosted in self._hosted.values())

    # --- loading ---------------------------------------------------------------------------------

    def _start_load(self, index: int, partition: PartitionWriter, *, is_wary: bool = False) -> None:
        image = self._image()
        hosted = Hosted(index, partition, self._make_shard(image))
        hosted.is_wary = is_wary
        self._hosted[index] = hosted
        if partition.log.log_start_offset == partition.log.log_end_offset:
            self._begin(hosted, image)
        else:
            self._to_load.append((hosted, image))
            self._wakeup.set()

    async def run(self) -> None:
        """Load partitions one after the other, until cancelled; raises if the runtime is broken."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            if self._broken is not None:
                raise self._broken
            while self._to_load:
                await self._load(*self._to_load.popleft())

    async def _load(self, hosted: Hosted[S], image: MetadataImage) -> None:
        def is_wanted() -> bool:
            return self._hosted.get(hosted.index) is hosted

        try:
            count = await replay_log(
                hosted.partition, hosted.shard, self._disk, is_wanted=is_wanted
            )
        except TidemillError as error:
            # It stays unloaded: a coordinator that forgot something would be worse than none.
            log.error("%s-%d cannot be loaded: %s", self._name, hosted.index, error)
            return
        if is_wanted():
            log.info("%s-%d loaded: %d records", self._name, hosted.index, count)
            self._begin(hosted, image)

    def _begin(self, hosted: Hosted[S], image: MetadataImage) -> None:
        """The shard knows all that the log holds: serve, from the newest image on."""
        hosted.appended_offset = hosted.partition.log.log_end_offset
        hosted.is_loaded = True
        hosted.shard.loaded(self._now())
        if self._image() is not image:
            self._change_metadata(hosted, difference(image, self._image()))
        self._arm(hosted)

    def _reload(self, hosted: Hosted[S]) -> None:
        """The shard promised what it could not write down: begin anew from the log."""
        if self._hosted.get(hosted.index) is hosted:
            self.resign(hosted.index)
            self._start_load(hosted.index, hosted.partition, is_wary=True)

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
            self._arm(hosted)
        return answer

    def read(
        self,
        index: int,
        operation: Callable[[S, Now], R],
        refuse: Callable[[ErrorCode], R],
    ) -> R | Deferred[R]:
        """Run an operation that changes nothing; its answer shows only what is committed."""
        hosted = self._find(index)
        result = Result(operation(hosted.shard, self._now()))
        return self._answer(hosted, result, refuse)

    def metadata_changed(self, delta: Delta) -> None:
        """Tell every shard; those that are being loaded hear of it at their end."""
        for hosted in list(self._hosted.values()):
            if hosted.is_loaded:
                self._change_metadata(hosted, delta)
                self._arm(hosted)

    def _find(self, index: int) -> Hosted[S]:
        hosted = self._hosted.get(index)
        if hosted is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not hosted.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return hosted

    def _now(self) -> Now:
        """Time stands still while a turn's batches are open."""
        if self._opened:
            return self._turn_now
        return Now(int(self._clock.monotonic() * 1000), self._clock.wall_ms())

    # --- committing ------------------------------------------------------------------------------

    def _commit(
        self,
        hosted: Hosted[S],
        result: Result[R],
        refuse: Callable[[ErrorCode], R],
        now: Now,
    ) -> R | Deferred[R]:
        if result.records:
            self._take_in(hosted, result, now)
        return self._answer(hosted, result, refuse)

    def _take_in(self, hosted: Hosted[S], result: Result[Any], now: Now) -> None:
        """All records or none: into the shard, and into the open batch or the log."""
        records = result.records
        size_bytes = record_bytes(records)
        try:
            batch = self._find_room(hosted, size_bytes, now)
            if batch is None:
                alone = build_pair_batch(records, now.wall_ms)
                hosted.appended_offset = append_all(hosted.partition, alone, now.wall_ms)
                hosted.is_wary = False
        except (KafkaError, StorageFault) as error:
            self._refuse_all(hosted, result, error)
        try:
            for key, value in records:
                hosted.shard.replay(key, value)
        except BaseException:
            self._reload(hosted)
            raise
        if batch is not None:
            batch.add(records, size_bytes)

    def _find_room(self, hosted: Hosted[S], size_bytes: int, now: Now) -> OpenBatch | None:
        """The batch that takes so much; None: it is to be appended at once."""
        batch = hosted.open_batch
        if batch is not None:
            if batch.has_room(size_bytes):
                return batch
            self._write_out(hosted, batch)
        check_writable(hosted.partition)
        message_bytes_max = hosted.partition.settings.policy.max_message_bytes
        batch = OpenBatch(message_bytes_max, now.wall_ms)
        if hosted.is_wary or not batch.has_room(size_bytes):
            return None
        hosted.open_batch = batch
        if not self._opened:
            self._turn_now = now
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._opened.append(hosted)
        return batch

    def _refuse_all(
        self, hosted: Hosted[S], result: Result[Any], error: KafkaError | StorageFault
    ) -> NoReturn:
        meaning = meaning_of(error)
        refuse_replies(result.replies, meaning)
        if result.replies:
            self._reload(hosted)
        raise KafkaError(meaning, str(error)) from error

    # --- open batches ----------------------------------------------------------------------------

    def _end_turn(self) -> None:
        """Append what the turn brought; answers leave when all of that is done."""
        opened, self._opened = self._opened, []
        for hosted in opened:
            if hosted.open_batch is not None:
                self._end_batch(hosted, hosted.open_batch)
        written, self._written = self._written, []
        for hosted, replies, offset in written:
            self._answer_when_committed(hosted, replies, offset)
        for hosted in opened:
            if self._hosted.get(hosted.index) is hosted:
                self._arm(hosted)

    def _end_batch(self, hosted: Hosted[S], batch: OpenBatch) -> None:
        try:
            self._write_out(hosted, batch)
        except (KafkaError, StorageFault) as error:
            log.warning("%s-%d: %s", self._name, hosted.index, error)
        except Exception as broken:  # noqa: BLE001 - no caller to tell: `run` ends with it
            self._broken = broken
            self._wakeup.set()

    def _write_out(self, hosted: Hosted[S], batch: OpenBatch) -> None:
        """Append the open batch; raises what the log said if all who wait with it were refused.

        Its answers leave with the turn's end, not here: one that leaves may bring a next request.
        """
        hosted.open_batch = None
        try:
            offset = append_all(hosted.partition, batch.build(), batch.now_ms)
        except Exception as error:
            self._reload(hosted)
            refuse_replies(batch.replies, meaning_of(error))
            raise
        hosted.appended_offset = offset
        self._written.append((hosted, batch.replies, offset))

    # --- answers ---------------------------------------------------------------------------------

    def _answer(
        self, hosted: Hosted[S], result: Result[R], refuse: Callable[[ErrorCode], R]
    ) -> R | Deferred[R]:
        batch = hosted.open_batch
        if batch is not None:
            return park(batch.replies, result, refuse)
        if hosted.acknowledged_offset < hosted.appended_offset:
            replies: list[Reply] = []
            answer = park(replies, result, refuse)
            self._answer_when_committed(hosted, replies, hosted.appended_offset)
            return answer
        for parked, reply in result.replies:
            parked.answer.resolve(reply)
        response = result.response
        return response.answer if isinstance(response, Parked) else response

    def _answer_when_committed(self, hosted: Hosted[S], replies: list[Reply], offset: int) -> None:
        commit = Commit(hosted, replies, offset)
        waiter = hosted.partition.wait_acknowledged(offset, commit.settle)
        if not commit.is_settled:
            commit.timer = self._timers.add_after(
                self._commit_timeout_s, lambda: waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
            )

    # --- time and metadata -----------------------------------------------------------------------

    def _arm(self, hosted: Hosted[S]) -> None:
        """Look at the shard's deadlines again when the next one comes."""
        next_ms = hosted.shard.next_deadline_ms()
        if next_ms is None or (hosted.timer is not None and hosted.timer[0] <= next_ms):
            return
        if hosted.timer is not None:
            hosted.timer[1].cancel()
        delay_s = max(0.0, next_ms / 1000 - self._clock.monotonic())
        hosted.timer = next_ms, self._timers.add_after(delay_s, lambda: self._expire(hosted))

    def _expire(self, hosted: Hosted[S]) -> None:
        hosted.timer = None
        now = self._now()
        self._run_unasked(hosted, lambda: hosted.shard.expire(now), now)
        if self._hosted.get(hosted.index) is hosted:
            self._arm(hosted)

    def _change_metadata(self, hosted: Hosted[S], delta: Delta) -> None:
        now = self._now()
        self._run_unasked(hosted, lambda: hosted.shard.metadata_changed(delta, now), now)

    def _run_unasked(
        self, hosted: Hosted[S], operation: Callable[[], Result[None]], now: Now
    ) -> None:
        """What nobody waits for: when it cannot be written the shard is loaded anew."""
        try:
            self._commit(hosted, operation(), lambda _code: None, now)
        except KafkaError as error:
            log.warning("%s-%d: %s", self._name, hosted.index, error)
            if self._hosted.get(hosted.index) is hosted:
                self._reload(hosted)
