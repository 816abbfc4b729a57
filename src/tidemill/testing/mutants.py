"""Planted bugs: a test that finds none of them proves nothing.

Each mutant replaces one function of the broker while it is planted. The checks of the simulation
(`tests/sim`) must find it within some seeds; `seeds_to_detection` says how many it took, and
`docs/internals/simulation.md` has the table.

Another mutant takes three lines: its name, the place of the function, and what stands there
instead; the replacement is made from the original.

    @mutant("no_ack", "tidemill.replication.leader_log:LeaderLog.wait_acknowledged")
    def _no_ack(original):
        return lambda partition, next_offset, settle: ...

Compiled modules take no replacement (`make plain` removes them), so planting one there raises
`MutantNotPlantable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, final

from tidemill.coordinators.transaction.decisions import Ending
from tidemill.coordinators.transaction.transaction import Transaction
from tidemill.core.compiled import is_compiled
from tidemill.core.config.keys import INT64_MAX
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.delivery.filter.parser import parse_selector
from tidemill.delivery.filter.program import Assembler
from tidemill.hot.header_match import Program
from tidemill.metadata.image.metadata_image import MetadataImage, PartitionImage, Return
from tidemill.replication.follower_log import FollowerLog
from tidemill.replication.in_sync import InSync, Members, ids_of
from tidemill.replication.isr import UNKNOWN_OFFSET, FollowerPosition, JoinBar
from tidemill.replication.leader_log import LeaderLog
from tidemill.replication.led_replicas import LedReplicas
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.replication.vouching.vouch import VOUCH_S
from tidemill.replication.waiting.waiters import AckWaiter
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.log.interface import LogCut
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.wire.generated.fetch import FetchPartition, PartitionData
from tidemill.wire.generated.replica_progress import ProgressPartition

__all__ = [
    "MUTANTS",
    "Detection",
    "Mutant",
    "MutantNotPlantable",
    "mutant",
    "seeds_to_detection",
]

Function = Any
"""Any function or property: a mutant has the signature of what it replaces."""
Make = Callable[[Function], Function]
Settle = Callable[[ErrorCode], None]
Positions = Mapping[int, FollowerPosition]


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


@final
@dataclass(frozen=True, slots=True)
class Detection:
    """When a bug was found, and what was seen of it."""

    seeds: int
    error: Exception


def seeds_to_detection(
    planted: Mutant, run: Callable[[int], object], *, seeds_max: int, first: int = 0
) -> Detection | None:
    """How many seeds `run` needs until it fails; None: it does not within `seeds_max`.

    `run(seed)` must pass for these seeds without the mutant.
    """
    with planted.planted():
        for number in range(seeds_max):
            try:
                run(first + number)
            except Exception as error:  # noqa: BLE001 - whatever a planted bug leads to has found it
                return Detection(number + 1, error)
    return None


# --- acknowledgements and marks -------------------------------------------------------------------

_PARTITION = "tidemill.replication.partition"
_LEADER_LOG = "tidemill.replication.leader_log"
_FOLLOWER_LOG = "tidemill.replication.follower_log"
_PULLING = "tidemill.replication.pulling"
_IN_SYNC = "tidemill.replication.in_sync:InSync"
_FETCH_READER = "tidemill.server.handlers.data.fetch_reader:FetchReader"
_REPLICA_FETCH = "tidemill.server.handlers.data.replica_fetch"


@mutant("ack at once", f"{_LEADER_LOG}:LeaderLog.wait_acknowledged")
def _ack_at_once(original: Function) -> Function:
    def wait_acknowledged(log: LeaderLog, next_offset: int, settle: Settle) -> AckWaiter:
        waiter: AckWaiter = original(log, next_offset, settle)
        waiter.settle(ErrorCode.NONE)
        return waiter

    return wait_acknowledged


@mutant("ack before followers have it", f"{_IN_SYNC}.agreed")
def _leader_only(_original: Function) -> Function:
    return lambda _in_sync, end, flushed, _followers, _minimum: (end, flushed)


@mutant("count a follower outside the isr", f"{_IN_SYNC}.agreed")
def _any_followers(_original: Function) -> Function:
    def agreed(
        _in_sync: InSync, end: int, flushed: int, followers: Positions, minimum: int
    ) -> tuple[int, int]:
        ends = [end, *(one.log_end_offset for one in followers.values())]
        syncs = [flushed, *(one.flushed_offset for one in followers.values())]
        return sorted(ends)[-minimum], sorted(syncs)[-minimum]

    return agreed


@mutant("mark moves below min isr", f"{_IN_SYNC}.agreed")
def _below_min_isr(original: Function) -> Function:
    return lambda in_sync, end, flushed, followers, _minimum: original(
        in_sync, end, flushed, followers, 0
    )


@mutant("skip unknown member", f"{_IN_SYNC}.agreed")
def _skip_unknown(original: Function) -> Function:
    def agreed(
        in_sync: InSync, end: int, flushed: int, followers: Positions, minimum: int
    ) -> tuple[int, int]:
        ours = FollowerPosition(end, flushed)
        known = {i: ours if p.log_end_offset < 0 else p for i, p in followers.items()}
        result: tuple[int, int] = original(in_sync, end, flushed, known, minimum)
        return result

    return agreed


@mutant("mark from the proposed isr only", f"{_IN_SYNC}.sent")
def _proposed_only(original: Function) -> Function:
    def sent(in_sync: InSync, proposed: Members) -> None:
        original(in_sync, proposed)
        in_sync.maximal = ids_of(proposed)
        in_sync.set_candidates(())

    return sent


@mutant("joining member is not feared", f"{_IN_SYNC}._fear")
def _not_feared(original: Function) -> Function:
    return lambda in_sync, _feared: original(in_sync, ())


@mutant("withdraw on unknown", f"{_IN_SYNC}.unanswered")
def _withdraw(_original: Function) -> Function:
    return lambda in_sync, _base: in_sync._withdraw()


@mutant("withdraw on any refusal", f"{_IN_SYNC}.refused")
def _withdraw_refused(_original: Function) -> Function:
    return lambda in_sync, _base, _code: in_sync._withdraw()


@mutant("reset on any image", f"{_IN_SYNC}.saw")
def _reset_on_image(_original: Function) -> Function:
    return lambda in_sync, isr, epoch: in_sync._settle(isr, epoch) is None


@mutant("candidates do not count", f"{_IN_SYNC}.set_candidates")
def _no_candidates(_original: Function) -> Function:
    return lambda in_sync, _candidates: in_sync._count()


@mutant("join too early", f"{_PARTITION}:Partition._join_bar")
def _join_early(_original: Function) -> Function:
    return lambda _partition: JoinBar(log_end_offset=0)


@mutant("join unflushed", f"{_PARTITION}:Partition._join_bar")
def _join_unflushed(original: Function) -> Function:
    return lambda partition: replace(original(partition), flushed_offset=UNKNOWN_OFFSET)


@mutant("join by stale high watermark", f"{_PARTITION}:Partition._join_bar")
def _join_by_stale_mark(original: Function) -> Function:
    return lambda partition: replace(
        original(partition),
        log_end_offset=partition.high_watermark,
        flushed_offset=partition.durable_offset,
    )


@mutant("position of a former life counts", f"{_PARTITION}:Partition.follower_restarted")
def _former_life(_original: Function) -> Function:
    return lambda _partition, _broker_id: None


@mutant(
    "readers see beyond the mark",
    f"{_FETCH_READER}._end_offset",
)
def _beyond_the_mark(_original: Function) -> Function:
    return lambda _reader, partition: partition.log.log_end_offset


@mutant(
    "end told before it is known", "tidemill.server.handlers.data.list_offsets:_check_end_known"
)
def _end_unknown(_original: Function) -> Function:
    return lambda _partition, _request, _version: None


# --- followers -----------------------------------------------------------------------------------


@mutant("truncate to the high watermark", f"{_FOLLOWER_LOG}:FollowerLog.plan_truncation")
def _to_the_mark(_original: Function) -> Function:
    def plan(follower: FollowerLog, _epoch: int, _end_offset: int) -> LogCut | None:
        cut = follower.log.plan_truncation(follower._partition.high_watermark)
        if cut is None:
            follower._adopt_end()
        return cut

    return plan


@mutant("no truncation", f"{_FOLLOWER_LOG}:FollowerLog.plan_truncation")
def _no_truncation(_original: Function) -> Function:
    return lambda follower, _epoch, _end_offset: follower._adopt_end()


@mutant("empty epoch stays", f"{_FOLLOWER_LOG}:FollowerLog._adopt_end")
def _empty_epoch(_original: Function) -> Function:
    def adopt_end(follower: FollowerLog) -> None:
        partition = follower._partition
        start, end = follower.log.log_start_offset, follower.log.log_end_offset
        partition.high_watermark = min(max(partition.high_watermark, start), end)
        partition.durable_offset = min(max(partition.durable_offset, start), end)

    return adopt_end


@mutant("epoch not checked", f"{_PARTITION}:Partition.check_epoch")
def _no_epoch_check(_original: Function) -> Function:
    return lambda _partition, _epoch: None


@mutant(
    "divergence not checked",
    f"{_REPLICA_FETCH}:_diverges",
)
def _no_divergence(_original: Function) -> Function:
    return lambda _partition, _wanted, _data: False


@mutant("answer of a former epoch applied", f"{_PULLING}.fetch_lane:FetchLane._follows")
def _any_epoch(_original: Function) -> Function:
    return lambda lane, partition, _epoch: partition in lane.round


@mutant("follower claims to have flushed", f"{_PULLING}.fetch_round:_wanted")
def _claims_flushed(original: Function) -> Function:
    def wanted(partition: Partition, max_bytes: int) -> FetchPartition:
        asked: FetchPartition = original(partition, max_bytes)
        asked.flushed_offset = asked.fetch_offset
        return asked

    return wanted


@mutant("follower does not flush", f"{_FOLLOWER_LOG}:FollowerLog.append")
def _does_not_flush(original: Function) -> Function:
    def append(follower: FollowerLog, *batches: object, **told: object) -> object:
        partition = follower._partition
        settings = partition.settings
        partition.settings = replace(settings, flush_before_ack=False)
        try:
            return original(follower, *batches, **told)
        finally:
            partition.settings = settings

    return append


@mutant("progress of another epoch", "tidemill.server.handlers.data.replica_progress:_counts")
def _progress_of_any_epoch(_original: Function) -> Function:
    return lambda _slot, _told: True


@mutant("progress before the cut", "tidemill.replication.led_replicas:LedReplicas.flushed")
def _progress_before_the_cut(_original: Function) -> Function:
    def flushed(led: LedReplicas, broker_id: int, flushed_offset: int) -> bool:
        position = led.followers.get(broker_id)
        if position is None or flushed_offset <= position.flushed_offset:
            return False
        position.flushed_offset = flushed_offset
        return True

    return flushed


@mutant("progress claims what was not flushed", f"{_PULLING}.fetch_lane:progress_of")
def _progress_unflushed(original: Function) -> Function:
    def progress_of(partition: Partition) -> ProgressPartition:
        told: ProgressPartition = original(partition)
        told.flushed_offset = partition.log.log_end_offset
        return told

    return progress_of


@mutant("cut below what was committed", f"{_PULLING}.leader_answers:LeaderAnswers._allows_cut")
def _any_cut(_original: Function) -> Function:
    return lambda _answers, _partition, _cut: True


@mutant("note on re-read", f"{_REPLICA_FETCH}:_ReplicaFetch.answer")
def _note_again(original: Function) -> Function:
    def answer(fetch: Function) -> object:
        now = fetch._context.services.clock.monotonic()
        for topic in fetch._request.topics:
            for wanted in topic.partitions:
                with suppress(KafkaError):
                    partition = fetch._find((topic.topic_id, wanted.partition))
                    fetch._try_note(partition, wanted, PartitionData(), now)
        return original(fetch)

    return answer


@mutant("no broker epoch check", "tidemill.replication.led_replicas:BrokerEpochs.check")
def _no_broker_epoch(_original: Function) -> Function:
    return lambda _epochs, _broker_id, _epoch: None


@mutant(
    "fenced one serves followers",
    "tidemill.replication.replica_manager:ReplicaManager._follow_own_registration",
)
def _fenced_serves(_original: Function) -> Function:
    def follow_own_registration(replicas: ReplicaManager, _image: MetadataImage) -> bool:
        replicas._is_let_in = True
        return False

    return follow_own_registration


# --- leases ---------------------------------------------------------------------------------------


@mutant("lease ignored", "tidemill.metadata.lease:Lease.is_held")
def _lease_ignored(_original: Function) -> Function:
    return property(lambda lease: lease.registered)


@mutant("no lease at append", f"{_PARTITION}:Partition.check_writable")
def _no_lease_at_append(original: Function) -> Function:
    return lambda partition, acks: _without_lease(original, partition, acks)


@mutant("no lease at the marks", f"{_PARTITION}:Partition.maybe_advance_marks")
def _no_lease_at_marks(_original: Function) -> Function:
    return lambda partition: partition.advance_marks() if partition.is_leader else None


@mutant("no lease at fetch", f"{_FETCH_READER}._read_one")
def _no_lease_at_fetch(original: Function) -> Function:
    return lambda reader, target, data, budget: _without_lease(
        original, reader, target, data, budget
    )


@mutant(
    "no lease at a parked fetch",
    "tidemill.server.handlers.data.fetch:_WaitingFetch.read_and_answer",
)
def _no_lease_at_parked_fetch(original: Function) -> Function:
    return lambda waiting: _without_lease(original, waiting)


@mutant("no lease at end offsets", "tidemill.server.handlers.data.list_offsets:find_led_partition")
def _no_lease_at_ends(original: Function) -> Function:
    return lambda *wanted: _without_lease(original, *wanted)


@mutant(
    "no lease at a coordinator",
    "tidemill.coordinators.runtime.coordinator_runtime:CoordinatorRuntime._find",
)
def _no_lease_at_coordinator(original: Function) -> Function:
    def find(runtime: Function, index: int) -> object:
        place: Any = Partition
        may_act = place.may_act
        place.may_act = True
        try:
            return original(runtime, index)
        finally:
            place.may_act = may_act

    return find


def _without_lease(call: Function, *arguments: object) -> object:
    """Call what checks for the leader; nobody asks for its lease meanwhile."""
    place: Any = Partition
    check_leader = place.check_leader
    place.check_leader = place.check_serves_followers
    try:
        return call(*arguments)
    finally:
        place.check_leader = check_leader


# --- vouches --------------------------------------------------------------------------------------


@mutant("vouched by arrival", "tidemill.server.handlers.data.replica_fetch:_ReplicaFetch.take_in")
def _vouched_by_arrival(original: Function) -> Function:
    def take_in(fetch: Function) -> None:
        original(fetch)
        if fetch._request.replica_vouches and fetch._request.session_epoch:
            now = fetch._context.services.clock.boottime()
            fetch._session.vouch.until = now + VOUCH_S

    return take_in


@mutant("new leader not silent", "tidemill.replication.vouching.silence:Silence.holds")
def _not_silent(_original: Function) -> Function:
    return lambda _silence, _now: False


@mutant("nobody need vouch", f"{_PARTITION}:Partition.is_vouched")
def _unvouched(_original: Function) -> Function:
    return property(lambda partition: partition.is_leader and partition.mandate._lease.is_let_in)


# --- the controller and the store -----------------------------------------------------------------

_ELECTION = "tidemill.metadata.controller.election"
_DECISIONS = "tidemill.metadata.controller.decisions"
_REASSIGNMENT = "tidemill.metadata.controller.reassignment"
_FORMER_LEADERS = "tidemill.metadata.controller.former_leaders:FormerLeaders"


@mutant("elect outside the isr", f"{_ELECTION}:_elect")
def _outside_isr(original: Function) -> Function:
    return lambda partition, live, rules: original(
        replace(partition, isr=tuple(one for one in partition.replicas if one in live), elr=()),
        live,
        rules,
    )


@mutant("no epoch bump", f"{_ELECTION}:_led_by")
def _no_bump(original: Function) -> Function:
    return lambda partition, leader, **sets: replace(
        original(partition, leader, **sets), leader_epoch=partition.leader_epoch
    )


@mutant("unclean restart stays in sync", f"{_DECISIONS}:after_return")
def _stays_in_sync(original: Function) -> Function:
    return lambda partition, broker_id, how: original(
        partition, broker_id, Return.CLEAN if how is Return.UNCLEAN else how
    )


@mutant("new disk stays in elr", f"{_DECISIONS}:after_return")
def _new_disk_stays(original: Function) -> Function:
    return lambda partition, broker_id, how: original(
        partition, broker_id, Return.CLEAN if how is Return.NEW_DISK else how
    )


@mutant("one life keeps its epoch", f"{_DECISIONS}:after_return")
def _next_life_same_epoch(original: Function) -> Function:
    return lambda partition, broker_id, how: (
        partition if how is Return.CLEAN else original(partition, broker_id, how)
    )


@mutant("no epoch bump on removal", f"{_DECISIONS}:after_return")
def _no_bump_on_removal(original: Function) -> Function:
    return lambda partition, broker_id, how: replace(
        original(partition, broker_id, how), leader_epoch=partition.leader_epoch
    )


def _without_old_leader(original: Function) -> Function:
    def handed_over(
        partition: PartitionImage, wanted: Function, candidates: Function
    ) -> PartitionImage | None:
        after: PartitionImage | None = original(partition, wanted, candidates)
        if after is None or after.leader == partition.leader:
            return after
        return replace(after, isr=tuple(one for one in after.isr if one != partition.leader))

    return handed_over


mutant("moved leader dropped from the isr", f"{_ELECTION}:handed_over")(_without_old_leader)
mutant("reassigned leader dropped from the isr", f"{_REASSIGNMENT}:handed_over")(
    _without_old_leader
)


@mutant("former leader forgotten at once", f"{_FORMER_LEADERS}.of")
def _forgotten_at_once(_original: Function) -> Function:
    return lambda _leaders, _topic_id, _index, _partition, _now: ()


@mutant("no epoch bump when a replica leaves", f"{_REASSIGNMENT}:_without_replicas")
def _no_bump_when_one_leaves(original: Function) -> Function:
    return lambda partition, gone: replace(
        original(partition, gone), leader_epoch=partition.leader_epoch
    )


@mutant("move ends before the copy does", f"{_DECISIONS}:advanced")
def _ends_early(original: Function) -> Function:
    def advanced(partition: PartitionImage, *rest: Function) -> PartitionImage:
        if not partition.is_moving:
            return partition
        after: PartitionImage = original(replace(partition, isr=partition.replicas), *rest)
        return after

    return advanced


@mutant("storm counted dead", "tidemill.metadata.controller.controllership:Controllership._awaited")
def _storm_counted_dead(_original: Function) -> Function:
    return lambda _controllership, _image: frozenset()


@mutant("any life may join", f"{_DECISIONS}:_eligible")
def _any_life(_original: Function) -> Function:
    return lambda _image, isr: {broker_id for broker_id, _ in isr}


@mutant("controller unguarded by its epoch", "tidemill.metadata.controller.page_writer:_Write.ops")
def _unguarded(original: Function) -> Function:
    return lambda write: original(write)[1:]


# --- views ----------------------------------------------------------------------------------------


@mutant("no skip batch", "tidemill.delivery.view_walk:ViewWalk._skip")
def _no_skip_batch(_original: Function) -> Function:
    return lambda _walk: b""


@mutant("unknown matches", "tidemill.server.fetching.view_reader:compile_selector")
def _unknown_matches(_original: Function) -> Function:
    def compile_selector(text: str) -> Program:
        # Everything but false: the condition, or that it is unknown.
        tree = parse_selector(text)
        assembler = Assembler()
        assembler.condition(tree)
        assembler.condition(tree)
        assembler.put("IS_NULL", height=0)
        assembler.put("OR", height=-1)
        return assembler.program()

    return compile_selector


@mutant("jump over matches", "tidemill.delivery.matchless:MatchlessRanges.end_from")
def _jump_over_matches(_original: Function) -> Function:
    return lambda ranges, offset: max([offset, *ranges._ends])


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


# --- transactions: in the logs, where crash states find them too (`tests/crash`) ------------------

_PRODUCERS = "tidemill.storage.state.producer_state:ProducerStates"


@mutant("stable offset before the marker", f"{_PRODUCERS}.stable_offset")
def _stable_too_early(_original: Function) -> Function:
    return lambda _producers, high_watermark: high_watermark


@mutant("open transaction expires", f"{_PRODUCERS}.expire")
def _open_expires(original: Function) -> Function:
    def expire(producers: ProducerStates, *bounds: int, **options: int) -> int:
        producers._open.clear()
        count: int = original(producers, *bounds, **options)
        return count

    return expire


@mutant("aborted index not cut", "tidemill.storage.index.aborted_index:AbortedIndex.head")
def _aborted_not_cut(original: Function) -> Function:
    return lambda aborted, _end_offset: original(aborted, INT64_MAX)


# --- transactions: in the coordinators ------------------------------------------------------------

_COORDINATOR = "tidemill.coordinators.transaction"
FIRST_WITHOUT_ADDING = 12
"""The version of Produce from which on verifying a partition adds it."""


@mutant("markers lost on reload", f"{_COORDINATOR}.shard:TransactionShard._hand_over_unmarked")
def _markers_lost(_original: Function) -> Function:
    return lambda shard, _work: shard._unmarked.clear()


@mutant("complete before the markers", f"{_COORDINATOR}.marker_sender:MarkerSender._settled")
def _complete_early(original: Function) -> Function:
    return lambda sender, decision, name, _code: original(sender, decision, name, ErrorCode.NONE)


@mutant("end of an old epoch", f"{_COORDINATOR}.decisions:end")
def _any_epoch_ends(original: Function) -> Function:
    def end(current: Transaction | None, ending: Ending, **options: Function) -> Transaction:
        if current is not None:
            ending = ending._replace(producer=current.producer)
        after: Transaction = original(current, ending, **options)
        return after

    return end


@mutant(
    "transaction not verified",
    "tidemill.server.handlers.data.transaction_verification:TransactionVerification.check",
)
def _not_verified(original: Function) -> Function:
    def check(verification: Function, partition: Partition, records: memoryview) -> None:
        if verification._context.version >= FIRST_WITHOUT_ADDING:
            original(verification, partition, records)

    return check


@mutant("offsets before the commit", "tidemill.coordinators.group.shard:GroupShard.replay_pending")
def _offsets_early(_original: Function) -> Function:
    return lambda shard, key, value, _producer: shard.replay(key, value)
