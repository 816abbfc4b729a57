"""Hosts the shards of one coordinator: loads them, runs requests on them, answers when it is safe.

Theory of operation. Whoever leads a partition of the internal topic coordinates what hashes to it.
`lead` begins to load that partition: its log is replayed into a fresh shard, and until that is done
requests are refused with COORDINATOR_LOAD_IN_PROGRESS. From then on `write` runs one operation on
the shard, appends its records as one batch, replays them, and answers once acks=all holds for them
(D8). `resign` drops the shard; whoever waits for it is told to look for the new coordinator.

Everything happens on the event loop and nothing suspends between looking at the shard and having
appended, so shards need no locks. What is replayed but not yet committed can be lost with the
leadership, and then it is lost together with the shard; hence no answer leaves before everything
that the shard knew when it was made is committed, whether it wrote something itself or not: else it
could show what never was (I26, I28).

An operation refuses by raising KafkaError, at once. What fails later, after the append, reaches the
caller as the response that `refuse` makes of the error code.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, Protocol, TypeVar, final

from tidemill.coordinators.loading import ReadablePartition, replay_log
from tidemill.coordinators.shard import CoordinatorRecord, Now, Parked, Reply, Result, Shard
from tidemill.core.clock import Clock
from tidemill.core.deferred import Deferred
from tidemill.core.errors import ErrorCode, KafkaError, StorageFault, TidemillError
from tidemill.core.timers import LoopTimers, Timer
from tidemill.metadata.image import Delta, MetadataImage, difference
from tidemill.storage.disk import Disk
from tidemill.wire.records import Record, build_batch

__all__ = ["CoordinatorRuntime", "PartitionWriter"]

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Shard)
R = TypeVar("R")

ACKS_ALL = -1

_MEANINGS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""What a log's refusal means to a client of the coordinator."""


class Appended(Protocol):
    """Where a batch went."""

    next_offset: int


class Waiter(Protocol):
    """Somebody who waits for a mark."""

    def settle(self, code: ErrorCode) -> None: ...


class PartitionWriter(ReadablePartition, Protocol):
    """The partition under a shard."""

    leader_epoch: int

    def append(self, records: memoryview, *, acks: int, now_ms: int) -> Appended: ...

    def wait_acknowledged(
        self, next_offset: int, settle: Callable[[ErrorCode], None]
    ) -> Waiter: ...


@final
class _Hosted(Generic[S]):
    """One shard and the partition under it."""

    __slots__ = (
        "acknowledged_offset",
        "appended_offset",
        "epoch",
        "index",
        "is_loaded",
        "partition",
        "shard",
        "timer",
    )

    def __init__(self, index: int, partition: PartitionWriter, shard: S) -> None:
        self.index = index
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.shard = shard
        self.is_loaded = False
        self.appended_offset = 0
        """Behind the last record that the shard knows."""
        self.acknowledged_offset = -1
        """All below it is committed, as far as somebody asked."""
        self.timer: tuple[int, Timer] | None = None
        """When we look at the shard's deadlines next (monotonic, ms)."""


@final
class _Commit:
    """Answers that leave when all that the shard knows by now is committed."""

    __slots__ = ("_hosted", "_offset", "_replies", "is_settled", "timer")

    def __init__(self, hosted: _Hosted[Any], replies: list[Reply]) -> None:
        self._hosted = hosted
        self._offset = hosted.appended_offset
        self._replies = replies
        self.is_settled = False
        self.timer: Timer | None = None

    def settle(self, code: ErrorCode) -> None:
        self.is_settled = True
        if self.timer is not None:
            self.timer.cancel()
        if code is ErrorCode.NONE:
            self._hosted.acknowledged_offset = self._offset
        for parked, response in self._replies:
            if code is not ErrorCode.NONE:
                response = parked.refuse(_MEANINGS.get(code, code))
            parked.answer.resolve(response)


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
        self._hosted: dict[int, _Hosted[S]] = {}
        """By partition; at most one for each partition of the topic."""
        self._to_load: deque[tuple[_Hosted[S], MetadataImage]] = deque()
        self._wakeup = asyncio.Event()

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
        for parked in hosted.shard.resign():
            parked.answer.resolve(parked.refuse(ErrorCode.NOT_COORDINATOR))

    def shards(self) -> Iterator[S]:
        """Every shard that is loaded."""
        return (hosted.shard for hosted in self._hosted.values() if hosted.is_loaded)

    @property
    def is_loading(self) -> bool:
        return any(not hosted.is_loaded for hosted in self._hosted.values())

    # --- loading ---------------------------------------------------------------------------------

    def _start_load(self, index: int, partition: PartitionWriter) -> None:
        image = self._image()
        hosted = _Hosted(index, partition, self._make_shard(image))
        self._hosted[index] = hosted
        if partition.log.log_start_offset == partition.log.log_end_offset:
            self._begin(hosted, image)
        else:
            self._to_load.append((hosted, image))
            self._wakeup.set()

    async def run(self) -> None:
        """Load partitions one after the other, until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._to_load:
                await self._load(*self._to_load.popleft())

    async def _load(self, hosted: _Hosted[S], image: MetadataImage) -> None:
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

    def _begin(self, hosted: _Hosted[S], image: MetadataImage) -> None:
        """The shard knows all that the log holds: serve, from the newest image on."""
        hosted.appended_offset = hosted.partition.log.log_end_offset
        hosted.is_loaded = True
        hosted.shard.loaded(self._now())
        if self._image() is not image:
            self._change_metadata(hosted, difference(image, self._image()))
        self._arm(hosted)

    def _reload(self, hosted: _Hosted[S]) -> None:
        """The shard promised what it could not write down: begin anew from the log."""
        self.resign(hosted.index)
        self._start_load(hosted.index, hosted.partition)

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

    def _find(self, index: int) -> _Hosted[S]:
        hosted = self._hosted.get(index)
        if hosted is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not hosted.is_loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return hosted

    def _now(self) -> Now:
        return Now(int(self._clock.monotonic() * 1000), self._clock.wall_ms())

    # --- committing ------------------------------------------------------------------------------

    def _commit(
        self,
        hosted: _Hosted[S],
        result: Result[R],
        refuse: Callable[[ErrorCode], R],
        now: Now,
    ) -> R | Deferred[R]:
        if result.records:
            self._append(hosted, result, now)
        return self._answer(hosted, result, refuse)

    def _append(self, hosted: _Hosted[S], result: Result[Any], now: Now) -> None:
        """All records or none, and then the shard knows them."""
        batch = build_batch(_log_records(result.records, now.wall_ms))
        try:
            appended = hosted.partition.append(memoryview(batch), acks=ACKS_ALL, now_ms=now.wall_ms)
        except (KafkaError, StorageFault) as error:
            self._refuse_all(hosted, result, error)
        hosted.appended_offset = appended.next_offset
        for key, value in result.records:
            hosted.shard.replay(key, value)

    def _refuse_all(
        self, hosted: _Hosted[S], result: Result[Any], error: KafkaError | StorageFault
    ) -> NoReturn:
        code = error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR
        meaning = _MEANINGS.get(code, code)
        for parked, _ in result.replies:
            parked.answer.resolve(parked.refuse(meaning))
        if result.replies:
            self._reload(hosted)
        raise KafkaError(meaning, str(error)) from error

    def _answer(
        self, hosted: _Hosted[S], result: Result[R], refuse: Callable[[ErrorCode], R]
    ) -> R | Deferred[R]:
        if hosted.acknowledged_offset < hosted.appended_offset:
            return self._answer_when_committed(hosted, result, refuse)
        for parked, reply in result.replies:
            parked.answer.resolve(reply)
        response = result.response
        return response.answer if isinstance(response, Parked) else response

    def _answer_when_committed(
        self, hosted: _Hosted[S], result: Result[R], refuse: Callable[[ErrorCode], R]
    ) -> Deferred[R]:
        caller = result.response
        replies = result.replies
        if not isinstance(caller, Parked):
            caller, response = Parked(refuse), caller
            replies = [*replies, (caller, response)]
        commit = _Commit(hosted, replies)
        waiter = hosted.partition.wait_acknowledged(hosted.appended_offset, commit.settle)
        if not commit.is_settled:
            commit.timer = self._timers.add_after(
                self._commit_timeout_s, lambda: waiter.settle(ErrorCode.REQUEST_TIMED_OUT)
            )
        return caller.answer

    # --- time and metadata -----------------------------------------------------------------------

    def _arm(self, hosted: _Hosted[S]) -> None:
        """Look at the shard's deadlines again when the next one comes."""
        next_ms = hosted.shard.next_deadline_ms()
        if next_ms is None or (hosted.timer is not None and hosted.timer[0] <= next_ms):
            return
        if hosted.timer is not None:
            hosted.timer[1].cancel()
        delay_s = max(0.0, next_ms / 1000 - self._clock.monotonic())
        hosted.timer = next_ms, self._timers.add_after(delay_s, lambda: self._expire(hosted))

    def _expire(self, hosted: _Hosted[S]) -> None:
        hosted.timer = None
        now = self._now()
        self._run_unasked(hosted, lambda: hosted.shard.expire(now), now)
        if self._hosted.get(hosted.index) is hosted:
            self._arm(hosted)

    def _change_metadata(self, hosted: _Hosted[S], delta: Delta) -> None:
        now = self._now()
        self._run_unasked(hosted, lambda: hosted.shard.metadata_changed(delta, now), now)

    def _run_unasked(
        self, hosted: _Hosted[S], operation: Callable[[], Result[None]], now: Now
    ) -> None:
        """What nobody waits for: when it cannot be written the shard is loaded anew."""
        try:
            self._commit(hosted, operation(), lambda _code: None, now)
        except KafkaError as error:
            log.warning("%s-%d: %s", self._name, hosted.index, error)
            if self._hosted.get(hosted.index) is hosted:
                self._reload(hosted)


def _log_records(records: list[CoordinatorRecord], now_ms: int) -> list[Record]:
    return [Record(value, key, timestamp=now_ms) for key, value in records]
