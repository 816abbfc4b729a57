"""Planted bugs: a test that finds none of them proves nothing.

Each mutant replaces one function of the broker while it is planted. The checks of the simulation
(`tests/sim`) must find it within some seeds; `seeds_to_detection` says how many it took, and
`docs/internals/simulation.md` has the table.

Another mutant takes three lines: its name, the place of the function, and what stands there
instead; the replacement is made from the original.

    @mutant("no_ack", "tidemill.replication.partition:Partition.wait_acknowledged")
    def _no_ack(original):
        return lambda partition, next_offset, settle: ...

Compiled modules take no replacement (`make plain` removes them), so planting one there raises
`MutantNotPlantable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, final

from tidemill.core.compiled import is_compiled
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.replication.follower import Followers
from tidemill.replication.partition import Partition
from tidemill.replication.waiters import AckWaiter
from tidemill.server.fetching.fetch_sessions import FetchTarget
from tidemill.server.handlers.data.fetch_reader import FetchReader
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import LogCut
from tidemill.wire.generated.fetch import FetchPartition

__all__ = ["MUTANTS", "Mutant", "MutantNotPlantable", "mutant", "seeds_to_detection"]

Function = Any
"""Any function or property: a mutant has the signature of what it replaces."""
Make = Callable[[Function], Function]
Settle = Callable[[ErrorCode], None]


class MutantNotPlantable(Exception):
    """The module is compiled: its functions cannot be replaced."""


@final
@dataclass(frozen=True, slots=True)
class Mutant:
    """A named bug and its place, `module:function` or `module:Class.function`."""

    name: str
    place: str
    make: Make

    @property
    def is_plantable(self) -> bool:
        return not is_compiled(self.place.partition(":")[0])

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The broker has the bug while this is open."""
        module, _, path = self.place.partition(":")
        if not self.is_plantable:
            raise MutantNotPlantable(f"{self.name}: {module} is compiled; `make plain` first")
        owner: Any = import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        original = vars(owner)[name]
        setattr(owner, name, self.make(original))
        try:
            yield
        finally:
            setattr(owner, name, original)


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, place: str) -> Callable[[Make], Make]:
    """Add a mutant to `MUTANTS`."""

    def add(make: Make) -> Make:
        MUTANTS[name] = Mutant(name, place, make)
        return make

    return add


def seeds_to_detection(
    planted: Mutant, run: Callable[[int], object], *, seeds_max: int, first: int = 0
) -> int | None:
    """How many seeds `run` needs until it fails; None: it does not within `seeds_max`.

    `run(seed)` must pass for these seeds without the mutant.
    """
    with planted.planted():
        for number in range(seeds_max):
            try:
                run(first + number)
            except Exception:  # noqa: BLE001 - whatever a planted bug leads to has found it
                return number + 1
    return None


# --- acknowledgements and marks -------------------------------------------------------------------

_PARTITION = "tidemill.replication.partition"


@mutant("ack at once", f"{_PARTITION}:Partition.wait_acknowledged")
def _ack_at_once(original: Function) -> Function:
    def wait_acknowledged(partition: Partition, next_offset: int, settle: Settle) -> AckWaiter:
        waiter: AckWaiter = original(partition, next_offset, settle)
        waiter.settle(ErrorCode.NONE)
        return waiter

    return wait_acknowledged


@mutant("ack before followers have it", f"{_PARTITION}:Partition._positions")
def _leader_only(_original: Function) -> Function:
    return lambda _partition, own, _field: [own]


@mutant("count a follower outside the isr", f"{_PARTITION}:Partition._positions")
def _any_followers(_original: Function) -> Function:
    def positions(partition: Partition, own: int, field: str) -> list[int]:
        others = [getattr(one, field) for one in partition.followers.values()]
        return sorted([own, *others])[-partition.effective_in_sync_min :]

    return positions


@mutant("mark moves below min isr", f"{_PARTITION}:agreed_offset")
def _below_min_isr(original: Function) -> Function:
    return lambda positions, *, current, **_counts: original(
        positions, in_sync_count=1, in_sync_min=0, current=current
    )


@mutant("mark from the proposed isr only", f"{_PARTITION}:Partition.propose_isr")
def _proposed_only(_original: Function) -> Function:
    return lambda partition, isr: partition._set_maximal_isr(isr)


@mutant("position of a former life counts", f"{_PARTITION}:Partition.follower_restarted")
def _former_life(_original: Function) -> Function:
    return lambda _partition, _broker_id: None


@mutant(
    "readers see beyond the mark",
    "tidemill.server.handlers.data.fetch_reader:FetchReader._end_offset",
)
def _beyond_the_mark(original: Function) -> Function:
    def end_offset(reader: FetchReader, partition: Partition, target: FetchTarget) -> int:
        original(reader, partition, target)
        return partition.log.log_end_offset

    return end_offset


@mutant(
    "end told before it is known", "tidemill.server.handlers.data.list_offsets:_check_end_known"
)
def _end_unknown(_original: Function) -> Function:
    return lambda _partition, _request, _version: None


# --- followers -----------------------------------------------------------------------------------


@mutant("truncate to the high watermark", f"{_PARTITION}:Partition.plan_truncation")
def _to_the_mark(_original: Function) -> Function:
    def plan(partition: Partition, _epoch: int, _end_offset: int) -> LogCut | None:
        cut = partition.log.plan_truncation(partition.high_watermark)
        if cut is None:
            partition._adopt_end()
        return cut

    return plan


@mutant("no truncation", f"{_PARTITION}:Partition.plan_truncation")
def _no_truncation(_original: Function) -> Function:
    return lambda partition, _epoch, _end_offset: partition._adopt_end()


@mutant("empty epoch stays", f"{_PARTITION}:Partition._adopt_end")
def _empty_epoch(_original: Function) -> Function:
    def adopt_end(partition: Partition) -> None:
        start, end = partition.log.log_start_offset, partition.log.log_end_offset
        partition.high_watermark = min(max(partition.high_watermark, start), end)
        partition.durable_offset = min(max(partition.durable_offset, start), end)

    return adopt_end


@mutant("epoch not checked", f"{_PARTITION}:Partition.check_epoch")
def _no_epoch_check(_original: Function) -> Function:
    return lambda _partition, _epoch: None


@mutant(
    "divergence not checked",
    "tidemill.server.handlers.data.fetch_reader:FetchReader._diverges",
)
def _no_divergence(_original: Function) -> Function:
    return lambda _reader, _partition, _target, _data: False


@mutant("answer of a former epoch applied", "tidemill.replication.follower:Followers._follows")
def _any_epoch(_original: Function) -> Function:
    return lambda followers, leader_id, partition, _epoch: (
        partition in followers._followed.get(leader_id, ())
    )


@mutant("follower claims to have flushed", "tidemill.replication.follower:_wanted")
def _claims_flushed(original: Function) -> Function:
    def wanted(partition: Partition) -> FetchPartition:
        asked: FetchPartition = original(partition)
        asked.flushed_offset = asked.fetch_offset
        return asked

    return wanted


@mutant("follower does not flush", "tidemill.replication.follower:Followers._flush")
def _does_not_flush(_original: Function) -> Function:
    async def flush(_followers: Followers, _partitions: list[Partition]) -> None:
        return

    return flush


@mutant("join too early", "tidemill.replication.isr_keeper:expanded_isr")
def _join_early(original: Function) -> Function:
    return lambda isr, followers, **_needed: original(
        isr, followers, high_watermark=0, epoch_start_offset=0
    )


# --- the controller and the store -----------------------------------------------------------------

_ELECTION = "tidemill.metadata.controller.election"


@mutant("elect outside the isr", f"{_ELECTION}:_elect")
def _outside_isr(original: Function) -> Function:
    return lambda partition, live, config: original(
        replace(partition, isr=tuple(one for one in partition.replicas if one in live), elr=()),
        live,
        config,
    )


@mutant("no epoch bump", f"{_ELECTION}:_led_by")
def _no_bump(original: Function) -> Function:
    return lambda partition, leader, **sets: replace(
        original(partition, leader, **sets), leader_epoch=partition.leader_epoch
    )


@mutant("unclean restart stays in sync", "tidemill.metadata.cluster:restart_unclean")
def _stays_in_sync(_original: Function) -> Function:
    return lambda _image, _broker_id: []


@mutant("controller unguarded by its epoch", "tidemill.metadata.controller.page_writer:_Write.ops")
def _unguarded(original: Function) -> Function:
    return lambda write: original(write)[1:]


@mutant("lease ignored", "tidemill.metadata.lease:Lease.is_held")
def _lease_ignored(_original: Function) -> Function:
    return property(lambda lease: lease.registered)


# --- storage --------------------------------------------------------------------------------------


@mutant("sequence not checked", "tidemill.storage.state.producer_state:ProducerStates.check")
def _no_sequence(_original: Function) -> Function:
    return lambda _producers, _header: None


@mutant("failed sync counts", "tidemill.storage.directory.flush_round:FlushRound.check_synced")
def _failed_sync(original: Function) -> Function:
    return lambda flush_round, outcomes: original(flush_round, [None] * len(outcomes))


@mutant(
    "rename during a flush",
    "tidemill.storage.directory.log_directory:LogDirectory.delete_log",
)
def _rename_at_once(original: Function) -> Function:
    def delete_log(directory: LogDirectory, partition: TopicPartition) -> None:
        original(directory, partition)
        directory._busy.clear()

    return delete_log


@mutant("topic by name", "tidemill.storage.directory.log_directory:LogDirectory.get")
def _by_name(original: Function) -> Function:
    return lambda directory, partition, _topic_id=None: original(directory, partition)
