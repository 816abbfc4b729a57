"""Planted bugs of mending: what is known of damage, and what may take its place (ADR 0025)."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.storage.log.segment import Segment
from tidemill.storage.state.log_damage import DamagedRange, LogDamage
from tidemill.testing.mutants.planting import Function, mutant
from tidemill.upkeep.mend_attempts import MendAttempts, MendOutcome
from tidemill.upkeep.mend_progress import MendProgress

__all__: list[str] = []

# --- what is known --------------------------------------------------------------------------------


@mutant("damage forgotten over a restart", "tidemill.upkeep.mender:store_damage")
def _not_stored(_original: Function) -> Function:
    return lambda _disk, _directory, _data: None


@mutant("damaged range is read", "tidemill.storage.state.log_damage:LogDamage.readable_end")
def _read_all_the_same(_original: Function) -> Function:
    return lambda _damage, _offset, end_offset: end_offset


@mutant("lost range is passed over", "tidemill.storage.state.log_damage:LogDamage.give_up")
def _passed_over(_original: Function) -> Function:
    def give_up(damage: LogDamage, one: DamagedRange) -> None:
        damage.mended(one.start_offset, one.end_offset)

    return give_up


@mutant("memory beside damage is believed", "tidemill.storage.log.segment:Segment.read_verified")
def _believed(_original: Function) -> Function:
    def read_verified(
        segment: Segment, offset: int, *, may_have_gaps: Function, **limits: Function
    ) -> Function:
        return segment.read(offset, **limits)

    return read_verified


@mutant("damage in memory is final", "tidemill.storage.log.segment:Segment.search")
def _final(_original: Function) -> Function:
    return lambda _segment, look: look()


# --- who may count --------------------------------------------------------------------------------


@mutant(
    "follower with a hole gets in sync", "tidemill.replication.follower_log:FollowerLog.is_whole"
)
def _always_whole(_original: Function) -> Function:
    return property(lambda _follower: True)


@mutant(
    "recovery's damage registers as clean",
    "tidemill.storage.recovery.recovery_report:RecoveryReport.suspects",
)
def _no_suspects(_original: Function) -> Function:
    return property(lambda _report: [])


# --- what may take its place ----------------------------------------------------------------------

_MEND = "tidemill.storage.rewriting.segment_mend:SegmentMend"


@mutant("mended without the batch that follows", f"{_MEND}._check_next")
def _nothing_follows(_original: Function) -> Function:
    return lambda _mend, _hole, _header: None


@mutant("batch of another epoch mends", f"{_MEND}._check_epoch")
def _any_epoch(_original: Function) -> Function:
    return lambda _mend, _header: None


@mutant("own batch of another epoch is kept", f"{_MEND}._check_own")
def _any_own(_original: Function) -> Function:
    return lambda _mend, _header, _next_offset: None


@mutant("fetched batches not verified", "tidemill.storage.rewriting.segment_mend:verify")
def _not_verified(_original: Function) -> Function:
    return lambda _batch, _header: None


@mutant("gap of a follower is believed", f"{_MEND}.take")
def _gap_believed(original: Function) -> Function:
    return lambda mend, records, *, may_have_gaps: original(mend, records, may_have_gaps=True)


@mutant("mend goes on after a cut", "tidemill.upkeep.mend_attempts:MendAttempts._run")
def _cut_ignored(_original: Function) -> Function:
    async def run(attempts: MendAttempts, step: Callable[[], None]) -> None:
        await attempts._disk.run(step)

    return run


@mutant("compacted log of two replicas", "tidemill.upkeep.mend_progress:MendProgress.chosen")
def _mixture(_original: Function) -> Function:
    return lambda _progress, sources: list(sources)


# --- when it is given up --------------------------------------------------------------------------


@mutant("given up at the first answer", "tidemill.upkeep.mend_progress:MendProgress.is_lost")
def _lost_at_once(_original: Function) -> Function:
    return lambda _progress, _segment, *, lack_it_all: lack_it_all


@mutant("silent replica lacks it", "tidemill.upkeep.mend_attempts:_outcome_of")
def _silence_is_no(_original: Function) -> Function:
    return lambda _error, *, is_leader: MendOutcome.NEVER


@mutant("answers counted by log", "tidemill.upkeep.mend_progress:MendProgress.is_lost")
def _counted_by_log(original: Function) -> Function:
    class Any:
        base_offset = 0

    def is_lost(progress: MendProgress, _segment: Segment, *, lack_it_all: bool) -> bool:
        lost: bool = original(progress, Any, lack_it_all=lack_it_all)
        return lost

    return is_lost
