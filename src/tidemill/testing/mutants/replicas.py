"""Planted bugs of replicas: acknowledgements and marks, followers, leases, vouches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.replication.follower_log import FollowerLog
from tidemill.replication.in_sync import InSync, Members, ids_of
from tidemill.replication.isr import UNKNOWN_OFFSET, FollowerPosition, JoinBar
from tidemill.replication.leader_log import LeaderLog
from tidemill.replication.led_replicas import LedReplicas
from tidemill.replication.partition import Partition
from tidemill.replication.vouching.vouch import VOUCH_S
from tidemill.replication.waiting.waiters import AckWaiter
from tidemill.storage.log.interface import LogCut
from tidemill.testing.mutants.planting import Function, mutant
from tidemill.wire.generated.fetch import FetchPartition, PartitionData
from tidemill.wire.generated.replica_progress import ProgressPartition

__all__: list[str] = []
Settle = Callable[[ErrorCode], None]
Positions = Mapping[int, FollowerPosition]

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


@mutant("cut takes committed records along", f"{_FOLLOWER_LOG}:FollowerLog.plan_truncation")
def _cut_too_far(_original: Function) -> Function:
    def plan(follower: FollowerLog, epoch: int, end_offset: int) -> LogCut | None:
        asked = min(follower.common_end(epoch, end_offset), follower.committed_offset())
        return follower.log.plan_truncation(max(follower.log.log_start_offset, asked - 1))

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
    "tidemill.replication.replica_manager:ReplicaManager._standing",
)
def _fenced_serves(_original: Function) -> Function:
    return lambda _replicas, _image: (True, frozenset())


@mutant("replicated batches not verified", "tidemill.replication.following:verify")
def _not_verified(_original: Function) -> Function:
    return lambda _batch, _header: None


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
