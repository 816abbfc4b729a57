"""Planted bugs of the group coordinator, hunted with `--load groups`."""

from __future__ import annotations

from tidemill.coordinators.group.base.group import CommitIdentity
from tidemill.testing.mutants.planting import Function, mutant

__all__: list[str] = []

_GROUP = "tidemill.coordinators.group"
_CLASSIC = f"{_GROUP}.classic"
_CONSUMER = f"{_GROUP}.consumer"
_RUNTIME = "tidemill.coordinators.runtime"
_ANSWERS = f"{_RUNTIME}.committed_answers:CommittedAnswers"

# --- who may commit and who is heard (I26) --------------------------------------------------------


@mutant("old generation may commit", f"{_CLASSIC}.classic_group:ClassicGroup.check_commit")
def _old_generation_commits(original: Function) -> Function:
    def check_commit(group: Function, who: CommitIdentity, topics: Function, now: Function) -> None:
        if who.generation >= 0:
            who = who._replace(generation=group.generation)
        original(group, who, topics, now)

    return check_commit


@mutant("unknown member may commit", f"{_CLASSIC}.classic_group:ClassicGroup.check_commit")
def _unknown_member_commits(original: Function) -> Function:
    def check_commit(group: Function, who: CommitIdentity, topics: Function, now: Function) -> None:
        if group.members.get(who.member_id) is not None or not who.member_id:
            original(group, who, topics, now)

    return check_commit


@mutant("old generation is heard", f"{_CLASSIC}.classic_group:ClassicGroup.heartbeat")
def _old_generation_beats(original: Function) -> Function:
    def heartbeat(group: Function, request: Function, *, now: Function) -> Function:
        request.generation_id = group.generation
        return original(group, request, now=now)

    return heartbeat


@mutant("replaced static member is heard", f"{_CLASSIC}.members:ClassicMembers.identify")
def _replaced_is_heard(original: Function) -> Function:
    def identify(members: Function, member_id: str, instance_id: str | None) -> Function:
        current = members.try_id_of_instance(instance_id) if instance_id else None
        return original(members, current or member_id, instance_id)

    return identify


@mutant("old member epoch may commit", f"{_CONSUMER}.consumer_group:check_older_epoch")
def _old_epoch_commits(_original: Function) -> Function:
    return lambda *_arguments: None


@mutant("fenced member may commit", f"{_CONSUMER}.consumer_group:ConsumerGroup._check_epoch")
def _fenced_commits(_original: Function) -> Function:
    return lambda _group, _who: None


@mutant("fenced epoch is heard", f"{_CONSUMER}.heartbeat_sender:_check_epoch")
def _fenced_beats(_original: Function) -> Function:
    return lambda _member, _request: None


# --- who owns what (I26) --------------------------------------------------------------------------


@mutant("partition given before it was revoked", f"{_CONSUMER}.members:ConsumerMembers.try_owner")
def _given_early(_original: Function) -> Function:
    return lambda _members, _topic_id, _partition: None


@mutant("revocation not waited for", f"{_CONSUMER}.reconciliation:lists_any")
def _not_waited_for(_original: Function) -> Function:
    return lambda _owned, _partitions: False


@mutant("list from before the answer frees", f"{_CONSUMER}.consumer_group:reconcile")
def _late_list_frees(original: Function) -> Function:
    return lambda current, **rest: original(current, **{**rest, "may_be_late": False})


@mutant("owners forgotten at takeover", f"{_CONSUMER}.consumer_group:ConsumerGroup.loaded")
def _owners_forgotten(original: Function) -> Function:
    def loaded(group: Function, now: Function) -> None:
        original(group, now)
        group.members._owners.clear()

    return loaded


@mutant("new round does not wait", f"{_CLASSIC}.members:ClassicMembers.all_joined")
def _round_does_not_wait(_original: Function) -> Function:
    return property(lambda members: members.joined > 0)


@mutant("session cut short at takeover", f"{_CONSUMER}.member_deadlines:MemberDeadlines.loaded")
def _sessions_cut_short(original: Function) -> Function:
    def loaded(deadlines: Function, now: Function) -> None:
        original(deadlines, now._replace(monotonic_ms=now.monotonic_ms - 5_500))

    return loaded


# --- what is kept (I28) ---------------------------------------------------------------------------


@mutant("commit acknowledged before it is replicated", f"{_ANSWERS}.answer_when_committed")
def _answered_early(_original: Function) -> Function:
    def answer(_answers: Function, _hosted: Function, replies: Function, _offset: int) -> None:
        for parked, response in replies:
            parked.resolve(response)

    return answer


@mutant("read does not wait for commits", f"{_ANSWERS}.answer")
def _read_early(original: Function) -> Function:
    def answer(answers: Function, hosted: Function, result: Function, refuse: Function) -> Function:
        if hosted.open_batch is None and not result.records:
            hosted.acknowledged_offset = hosted.appended_offset
        return original(answers, hosted, result, refuse)

    return answer


@mutant("generation not stored", f"{_CLASSIC}.rounds:Rounds.loaded")
def _generation_lost(original: Function) -> Function:
    def loaded(rounds: Function, now: Function) -> None:
        original(rounds, now)
        rounds.generation = 0

    return loaded


@mutant("group epoch not stored", f"{_CONSUMER}.consumer_group:ConsumerGroup.loaded")
def _epoch_lost(original: Function) -> Function:
    def loaded(group: Function, now: Function) -> None:
        original(group, now)
        group.plan.epoch = group.plan.targets.epoch = 0

    return loaded


@mutant("loaded up to the mark only", f"{_RUNTIME}.shard_loader:replay_log")
def _loaded_in_part(original: Function) -> Function:
    def replay(
        partition: Function, shard: Function, disk: Function, **options: Function
    ) -> Function:
        return original(_ReadableBelowMark(partition), shard, disk, **options)

    return replay


class _ReadableBelowMark:
    """A partition whose log ends at its high watermark."""

    def __init__(self, partition: Function) -> None:
        self.log = self
        self.log_start_offset = partition.log.log_start_offset
        self.log_end_offset = partition.high_watermark
        self.read = partition.read


# --- what must come about (I27) -------------------------------------------------------------------


@mutant("no sessions after takeover", f"{_CLASSIC}.rounds:Rounds.loaded")
def _no_sessions(_original: Function) -> Function:
    return lambda _rounds, _now: None
